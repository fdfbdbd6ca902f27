// The harness measured by itself: the floor twice has to be 1.0x, ten times the work a tenth of it.
import type { Calls, Context, Scenario } from '../harness/types.js'
import { KeyedFifo } from '../libraries/keyed-fifo.js'
import { loop } from '../libraries/locker.js'

const SLOWER = 10

const fifo =
  (repeat: number) =>
  async (context: Context): Promise<Calls> => {
    const locks = new KeyedFifo()
    const cycle = async (n: number): Promise<void> => {
      for (let i = 0; i < repeat; i++) {
        const release = await locks.acquire(context.name(n))
        release()
      }
    }
    return { run: ({ ms }: { ms: number }) => loop(cycle, { ms, batch: 100 }) }
  }

export const harness: Scenario[] = [
  {
    name: 'harness',
    title: 'the harness itself: the same work twice, and ten times the work',
    target: '1.0x and 0.1x',
    place: 'none',
    metrics: [{ name: 'cycles per second', unit: '/s', better: 'higher' }],
    seconds: 3,
    sliceMs: 100,
    warmUpMs: 200,
    libraries: {
      'keyed FIFO': { kind: 'floor', open: fifo(1) },
      'keyed FIFO again': { kind: 'floor', open: fifo(1) },
      'ten times the work': { kind: 'floor', open: fifo(SLOWER) },
    },
  },
]
