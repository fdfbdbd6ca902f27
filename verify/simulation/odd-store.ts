import type { LeaseId, Store, StoreEvent, Watch } from '../../src/store.js'
import type { SimProcess } from './process.js'
import type { Faults, Random } from './random.js'

/** Of each call, subscription and push, in rough weather. */
const CHANCE = 0.04

const LISTS = ['acquire', 'renew', 'release', 'take'] as const
const SINGLE = ['revoke', 'holders', 'inspect', 'now'] as const

/** What people throw. */
const THROWN: readonly unknown[] = [
  undefined,
  null,
  0,
  '',
  'out of cheese',
  Symbol('no'),
  Object.create(null),
  { message: 7 },
  new Error(''),
]
const NO_LIST: readonly unknown[] = [undefined, null, 7, 'x', {}, []]
const NO_VIEW: readonly unknown[] = [undefined, null, 'x', {}, Number.NaN]
const NO_ITEM: readonly unknown[] = [
  undefined,
  null,
  7,
  'x',
  {},
  { granted: true },
  { granted: true, owner: 'x', token: 1, ttlMs: Number.NaN },
  { granted: 'perhaps' },
  { outcome: 'ours' },
  { outcome: 'granted', ttlMs: 1_000 },
  { outcome: 'waiting' },
  { allowed: true },
]
const NO_EVENT: readonly unknown[] = [undefined, null, 7, {}, { type: 'nonsense' }, { type: 'granted' }]

/** A store with mistakes: it throws, rejects with whatever it likes, and answers with what is no answer. */
export function oddStore(store: Store, faults: Faults, process: SimProcess): Store {
  const strike = (kinds: readonly string[]): ReturnType<Faults['draw']> => {
    const struck = faults.draw(kinds.map((kind) => [kind, CHANCE] as const))
    if (struck) process.disturbances.push({ from: process.local, to: process.local + 1 })
    return struck
  }
  const odd = { ...store } as unknown as Record<string, unknown>
  for (const method of [...LISTS, ...SINGLE]) {
    const call = odd[method] as ((...args: unknown[]) => Promise<unknown>) | undefined
    if (!call) continue
    odd[method] = (...args: unknown[]): unknown => {
      const struck = strike(['throws', 'throwsLate', 'rejects', 'malformed'])
      if (!struck) return call(...args)
      const { kind, random } = struck as { kind: string; random: Random }
      if (kind === 'throws') throw random.pick(THROWN)
      const answering = call(...args)
      if (kind === 'throwsLate') {
        answering.catch(() => {})
        throw random.pick(THROWN)
      }
      const isList = (LISTS as readonly string[]).includes(method)
      return answering.then((answer) => {
        // oxlint-disable-next-line no-throw-literal, only-throw-error
        if (kind === 'rejects') throw random.pick(THROWN)
        return isList ? mangled(answer as unknown[], random) : random.pick(NO_VIEW)
      })
    }
  }
  if (store.watch) {
    const watch = store.watch.bind(store)
    odd['watch'] = (key: string, listener: (event: StoreEvent) => void) =>
      oddWatch(strike, listener, (heard) => watch(key, heard))
  }
  if (store.watchGrants) {
    const watch = store.watchGrants.bind(store)
    odd['watchGrants'] = (listener: (key: unknown, event: unknown) => void) =>
      oddWatch<unknown>(
        strike,
        (pushed) => (Array.isArray(pushed) ? listener(pushed[0], pushed[1]) : listener(undefined, pushed)),
        (heard) => watch((key, event) => heard([key, event])),
      )
  }
  if (store.watchRevoked) {
    const watch = store.watchRevoked.bind(store)
    odd['watchRevoked'] = (listener: (lease: LeaseId) => void) => oddWatch(strike, listener, watch)
  }
  odd['outage'] = () => {
    if (strike(['outage'])) throw new Error('nobody knows')
    return undefined
  }
  return odd as unknown as Store
}

function mangled(answers: unknown[], random: Random): unknown {
  if (random.chance(0.3)) return random.pick(NO_LIST)
  if (random.chance(0.2)) return answers.slice(1)
  return answers.map((answer) => (random.chance(0.7) ? random.pick(NO_ITEM) : answer))
}

function oddWatch<E>(
  strike: (kinds: readonly string[]) => ReturnType<Faults['draw']>,
  listener: (event: E) => void,
  begin: (listener: (event: E) => void) => Watch,
): Watch {
  const struck = strike(['throws', 'neverReady', 'closes'])
  if (struck?.kind === 'throws') throw struck.random.pick(THROWN)
  const watch = begin((event) => {
    const nonsense = strike(['nonsense'])
    if (nonsense) listener(nonsense.random.pick(NO_EVENT) as E)
    listener(event)
  })
  if (struck?.kind === 'neverReady') watch.ready = Promise.reject(struck.random.pick(THROWN))
  if (struck?.kind === 'closes') {
    const { close } = watch
    watch.close = () => {
      close()
      throw new Error('it would not close')
    }
  }
  return watch
}
