/**
 * What a case of the conformance kit is, and what it may need.
 *
 * @module
 */
import type { Store } from '../store.js'
import type { Bench } from './bench.js'

/**
 * What not every store can do.
 *
 * - `line`, `counting`, `atomic`, `values`: the store's `features`.
 * - `watch`, `watchRevoked`, `holders`, `inspect`, `revoke`, `take`, `now`: its optional methods. `steal` comes with `revoke`.
 * - `handoff`: a release hands the lease to the head of the line (`granted`), instead of only waking it (`freed`).
 * - `owners`: a grant keeps the owner of its claim, so that an owner who asks again meets its own grant.
 */
export type Need =
  | 'line'
  | 'counting'
  | 'atomic'
  | 'values'
  | 'watch'
  | 'watchRevoked'
  | 'holders'
  | 'inspect'
  | 'revoke'
  | 'take'
  | 'now'
  | 'handoff'
  | 'owners'

/** One behaviour, as a sentence. */
export interface Case {
  name: string
  /** Without these the behaviour cannot be asked for. */
  needs?: readonly Need[] | undefined
  run(t: Bench): Promise<void>
  /** What is promised where a need is missing. Absent: nothing is, and the case is only listed as not applicable. */
  otherwise?: Alternative | undefined
}

/** What is promised instead, unless its own needs are missing too. */
export type Alternative = Pick<Case, 'name' | 'needs' | 'run'>

/** Needs that can be read off a store; the others show only in its behaviour. */
const visible: Partial<Record<Need, (store: Store) => boolean>> = {
  line: (store) => store.features.line,
  counting: (store) => store.features.counting,
  atomic: (store) => store.features.atomic,
  values: (store) => store.features.values,
  watch: (store) => store.watch !== undefined,
  watchRevoked: (store) => store.watchRevoked !== undefined,
  holders: (store) => store.holders !== undefined,
  inspect: (store) => store.inspect !== undefined,
  revoke: (store) => store.revoke !== undefined,
  take: (store) => store.take !== undefined,
  now: (store) => store.now !== undefined,
}

/** What this store says of itself that it cannot do. */
export function lacksOf(store: Store): Need[] {
  return (Object.keys(visible) as Need[]).filter((need) => !visible[need]?.(store))
}

/** The part of a declaration that `lacksOf` can judge. */
export function visibleOnly(needs: readonly Need[]): Need[] {
  return needs.filter((need) => visible[need] !== undefined)
}

/** Cases that share their needs. */
export function needing(needs: readonly Need[], cases: readonly Case[]): Case[] {
  return cases.map((item) => ({ ...item, needs: [...new Set([...needs, ...(item.needs ?? [])])] }))
}
