import type { Store } from '../../src/store.js'
import { memory, type MemoryStore } from '../../src/stores/memory/index.js'
import type { SimProcess } from './process.js'
import type { Witness } from './server.js'

/** The memory store inside the process that uses it, as it is: only what the judge has to know is written down. */
export class LocalStore {
  readonly store: Store
  readonly real: MemoryStore
  readonly keys: Set<string> = new Set()
  openSubscriptions = 0

  constructor(process: SimProcess, witness: Witness) {
    const real = memory({ world: process.world })
    this.real = real
    real.watchRevoked?.(({ key, owner }) => witness.revoked(key, owner))
    const listenTo = (key: string): void => {
      if (this.keys.has(key)) return
      this.keys.add(key)
      real.watch?.(key, (event) => {
        if (event.type === 'granted') witness.pushedGrant(key, event.owner, event.token, event.tokens)
      })
    }
    const observed: Partial<MemoryStore> = {
      acquire: (claims, options) => {
        for (const { key } of claims) listenTo(key)
        const answers = real.acquire(claims, options)
        for (const [i, answer] of answers.entries()) witness.decided(claims[i] as never, answer, process)
        return answers
      },
      watch: (key, listener) => {
        this.openSubscriptions++
        const watch = (real.watch as NonNullable<Store['watch']>).call(real, key, listener)
        let open = true
        const close = (): void => {
          if (open) this.openSubscriptions--
          open = false
          watch.close()
        }
        return { ...watch, close }
      },
    }
    const own = observed as Record<PropertyKey, unknown>
    this.store = new Proxy(real, {
      get: (target, property) => {
        if (property in own) return own[property]
        const value = (target as unknown as Record<PropertyKey, unknown>)[property]
        return typeof value === 'function' ? (value as () => unknown).bind(target) : value
      },
    })
  }
}
