// What telemetry costs: the same locks without any, with a subscriber, and with OpenTelemetry.
import * as api from '@opentelemetry/api'
import { MeterProvider, MetricReader } from '@opentelemetry/sdk-metrics'
import { BasicTracerProvider, BatchSpanProcessor } from '@opentelemetry/sdk-trace-base'
import { subscribe } from 'node:diagnostics_channel'
import type * as library from '../../src/index.js'
import type * as otel from '../../src/otel/index.js'
import type { Context, Library, Scenario } from '../harness/types.js'
import { leasehold } from '../libraries/redis.js'
import { type OpenLocker, serially } from '../libraries/locker.js'

class IdleReader extends MetricReader {
  protected override async onForceFlush(): Promise<void> {}
  protected override async onShutdown(): Promise<void> {}
}

/** Spans are batched as in production, and then dropped: sending them is the cost of the exporter that people choose. */
function providers(): { tracerProvider: BasicTracerProvider; meterProvider: MeterProvider } {
  const exporter = {
    export: (_: unknown, done: (result: { code: number }) => void) => done({ code: 0 }),
    shutdown: async () => {},
  }
  return {
    tracerProvider: new BasicTracerProvider({ spanProcessors: [new BatchSpanProcessor(exporter)] }),
    meterProvider: new MeterProvider({ readers: [new IdleReader()] }),
  }
}

async function instrument(context: Context, options: otel.InstrumentOptions): Promise<void> {
  const { instrument: start } = await context.leasehold<typeof otel>('otel/index.js')
  start(api, { ...providers(), ...options })
}

const TELEMETRY: Record<string, (context: Context) => Promise<void> | void> = {
  'no telemetry': () => {},
  'one subscriber': () => subscribe('leasehold:released', () => {}),
  'OpenTelemetry, metrics': (context) => instrument(context, { spans: false }),
  'OpenTelemetry, metrics and spans': (context) => instrument(context, {}),
}

/** All are ours; as floors they run without --against too, and ratios refer to the first. */
const librariesWith = (open: OpenLocker): Record<string, Library> =>
  Object.fromEntries(
    Object.entries(TELEMETRY).map(([name, begin]) => [
      name,
      {
        kind: 'floor' as const,
        async open(context: Context) {
          await begin(context)
          return serially(open)(context)
        },
      },
    ]),
  )

const inMemory: OpenLocker = async (context) => {
  const { createLocks, memory } = await context.leasehold<typeof library>('index.js')
  const locks = createLocks(memory())
  return {
    async acquire(name) {
      const lock = await locks.acquire(name)
      return () => lock.release()
    },
  }
}

export const telemetry: Scenario[] = [
  {
    name: 'telemetry-memory',
    title: 'telemetry, one lock after the other in memory',
    place: 'none',
    metrics: [{ name: 'time per lock', unit: 'µs', better: 'lower' }],
    seconds: 15,
    sliceMs: 150,
    libraries: librariesWith(inMemory),
  },
  {
    name: 'telemetry-redis',
    title: 'telemetry, one lock after the other on one Redis',
    place: 'redis',
    metrics: [{ name: 'time per lock', unit: 'µs', better: 'lower' }],
    seconds: 15,
    libraries: librariesWith(leasehold()),
  },
]
