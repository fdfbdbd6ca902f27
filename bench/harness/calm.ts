// Calm mode: a scenario begins when nobody else uses the processors, and slices have pauses between them.
import { cpus } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'

/** Share of all cores that others may use. */
const QUIET = 0.1
const LOOK_MS = 500
const LIMIT_MS = 60_000

export const PAUSE_MS = 60

function times(): { busy: number; all: number } {
  let [busy, all] = [0, 0]
  for (const { times: spent } of cpus()) {
    const sum = spent.user + spent.nice + spent.sys + spent.idle + spent.irq
    all += sum
    busy += sum - spent.idle
  }
  return { busy, all }
}

/** Share of all cores that was in use during a moment, 0 to 1. */
export async function processorUse(ms: number = LOOK_MS): Promise<number> {
  const before = times()
  await sleep(ms)
  const after = times()
  return after.all === before.all ? 0 : (after.busy - before.busy) / (after.all - before.all)
}

/** Ends when the machine is quiet, or with the last look after a minute. */
export async function waitForCalm(): Promise<number> {
  const deadline = performance.now() + LIMIT_MS
  for (;;) {
    const use = await processorUse()
    if (use <= QUIET || performance.now() > deadline) return use
  }
}
