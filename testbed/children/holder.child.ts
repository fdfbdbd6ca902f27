// Acquires a lock on an SQLite file and reports its state. Its third argument selects the behaviour.
import { createLocks, LockLostError } from '../../src/index.js'
import { sqlite } from '../../src/stores/sqlite/index.js'
import { startStopwatch } from '../running-time.js'

const [, , path, how, ttl = '1000'] = process.argv as [string, string, string, string, string?]
const say = (line: object): boolean => process.stdout.write(`${JSON.stringify(line)}\n`)
const store = sqlite(path)
const locks = createLocks(store, { ttl: Number(ttl), wait: '60s' })

const behaviours: Record<string, () => Promise<void>> = {
  /** Holds until it is killed. */
  async hold() {
    const lock = await locks.acquire('a')
    say({ holds: true, token: String(lock.fencingToken), at: Date.now() })
    setInterval(() => {}, 1_000)
  },

  /** Holds and ends without releasing: the library must not keep the process alive. */
  async leave() {
    const lock = await locks.acquire('a')
    say({ holds: true, signal: lock.signal.aborted })
  },

  /** Only waits: a pending acquire alone has to keep the process alive. */
  async wait() {
    const watch = startStopwatch()
    say({ waiting: true })
    const lock = await locks.acquire('a')
    say({ holds: true, token: String(lock.fencingToken), stalledMs: watch.stalledMs() })
    await lock.release()
    await store.close()
  },

  /**
   * Is stopped by its parent while it holds, and checks as soon as it runs again: in the middle of busy code, before
   * any timer can have run. The gap in the clock shows that it was stopped.
   */
  async frozen() {
    let rounds = Number(process.argv[5])
    while (rounds-- > 0) {
      const outcome = await locks
        .withLock('a', async (lock) => {
          const { signal } = lock
          let last = performance.now()
          say({ holds: true })
          for (;;) {
            const now = performance.now()
            // Well beyond the ttl: a renewal that was sent right before the stop counts from then.
            if (now - last > Number(ttl) + 100) break
            last = now
            // Busy most of the time, with a turn of the event loop now and then so that renewals can be sent.
            if (Math.random() < 0.001) await new Promise((resolve) => setImmediate(resolve))
          }
          const truth = { isHeld: lock.isHeld, aborted: lock.signal.aborted, earlier: signal.aborted, throws: false }
          try {
            lock.assertHeld()
          } catch (error) {
            truth.throws = error instanceof LockLostError
          }
          say(truth)
          return 'resolved'
        })
        .catch((error: unknown) => (error instanceof LockLostError ? 'lost' : String(error)))
      say({ outcome })
    }
    await store.close()
  },

  /** Increments an unprotected counter under the lock. */
  async count() {
    const { readFileSync, writeFileSync, appendFileSync } = await import('node:fs')
    const [counter, tokens, times] = process.argv.slice(5) as [string, string, string]
    for (let i = 0; i < Number(times); i++) {
      await locks.withLock('a', async (lock) => {
        const before = Number(readFileSync(counter, 'utf8'))
        if (Math.random() < 0.2) await new Promise((resolve) => setImmediate(resolve))
        appendFileSync(tokens, `${lock.fencingToken}\n`)
        writeFileSync(counter, String(before + 1))
      })
    }
    await store.close()
  },

  /** Drops a lock, and reports when the library detected it. */
  async abandon() {
    locks.on('abandoned', ({ name }) => say({ abandoned: name }))
    locks.on('lost', ({ name }) => say({ lost: name }))
    await (async () => void (await locks.acquire('a')))()
    const kept = await locks.acquire('kept')
    const { signal } = await locks.acquire('kept-by-signal')
    // Twice as long as a lock without heartbeats lasts.
    for (const end = performance.now() + 2 * Number(ttl); performance.now() < end; ) {
      await new Promise((resolve) => setTimeout(resolve, 50))
      ;(globalThis as { gc?: () => void }).gc?.()
    }
    say({ kept: kept.isHeld, signal: signal.aborted })
    await locks.close({ grace: 0 })
    await store.close()
  },
}

await behaviours[how]?.()
