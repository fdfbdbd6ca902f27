// npm run bench -- memory: uncontended acquire + release in memory, side by side in one run. Ratios; times mean little.
// Plain JavaScript: what compiles TypeScript on the fly would slow down every closure, and so the others more than us.
import { Mutex } from 'async-mutex'
import { createLocks, memory } from '../dist/index.js'
import { sideBySide } from './side-by-side.mjs'

/** The least that could be called a keyed lock: a queue of waiters per name. No ttl, no token, no owner, no loss. */
class KeyedFifo {
  #queues = new Map()

  acquire(key) {
    const queue = this.#queues.get(key)
    const release = () => this.#release(key)
    if (queue) return new Promise((resolve) => queue.push(() => resolve(release)))
    this.#queues.set(key, [])
    return Promise.resolve(release)
  }

  #release(key) {
    const next = this.#queues.get(key)?.shift()
    if (next) next()
    else this.#queues.delete(key)
  }
}

const locks = createLocks(memory())
const mutex = new Mutex()
const fifo = new KeyedFifo()
const PAIRS = 100_000

await sideBySide('memory: uncontended acquire + release', PAIRS, {
  async leasehold() {
    for (let i = 0; i < PAIRS; i++) {
      const lock = await locks.acquire('name')
      void lock.release()
    }
  },
  async 'async-mutex'() {
    for (let i = 0; i < PAIRS; i++) {
      const release = await mutex.acquire()
      release()
    }
  },
  async 'a bare keyed FIFO'() {
    for (let i = 0; i < PAIRS; i++) {
      const release = await fifo.acquire('name')
      release()
    }
  },
})
await locks.close()
