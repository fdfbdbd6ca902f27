import { redact } from '../../util/redact.js'
import type { Command, Input } from '../command.js'
import { exitCode, exitCodeOfSignal } from '../exit-codes.js'
import { print, printJson, say, table } from '../output.js'
import { sharedStoreUrl, storeOption, withStore } from '../stores.js'

export const bench: Command = {
  usage: '[options]',
  summary: 'what locks cost on this store, measured from here with little load',
  about: `
Takes locks of its own (leasehold-bench:…) one after the other, then eight at a time, then hands one from client to client: at
most 5,000 locks each, for --for in all. It shows what this machine, network and store give right now. It is not the
benchmark of the repository, which compares libraries in turns on an idle machine.`,
  options: {
    for: { value: 'DURATION', help: 'how long in all (default 3s, 300ms to 30s)' },
    json: { help: 'for programs' },
    ...storeOption,
  },
  examples: [
    ['leasehold bench --store redis://db:6379', 'is the network fast enough for a short ttl?'],
    ["leasehold bench --for 10s --json | jq '.measurements[0].p99Ms'", 'for programs'],
  ],
  run: benchStore,
}

/** Bounds of --for in milliseconds: less says nothing, more would be a load test. */
const MIN_FOR_MS = 300
const MAX_FOR_MS = 30_000

async function benchStore(input: Input): Promise<number> {
  input.none('bench')
  const forMs = input.duration('for', { min: MIN_FOR_MS, max: MAX_FOR_MS }) ?? 3_000
  const target = redact(sharedStoreUrl(input))
  let caught: NodeJS.Signals | undefined
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => (caught ??= signal))
  const { measureStore } = await import('../measurement.js')
  const options = { forMs: forMs / 3, stop: () => caught !== undefined }
  const measurements = await withStore(input, (locks) =>
    withStore(input, (other) => measureStore(locks, other, options)),
  )
  if (caught) return exitCodeOfSignal(caught)
  if (input.has('json')) printJson({ store: target, forMs, measurements })
  else {
    const rows = measurements.map((one) => [
      one.title,
      String(one.count),
      String(one.perSecond ?? '-'),
      ...[one.p50Ms, one.p95Ms, one.p99Ms, one.maxMs].map((ms) => ms.toFixed(2)),
    ])
    print(table(['MEASURE', 'COUNT', 'PER SECOND', 'P50 MS', 'P95 MS', 'P99 MS', 'MAX MS'], rows))
  }
  say(`measured from here on ${target} with little load; not the benchmark of the repository`)
  return exitCode.ok
}
