/**
 * The definition of a case of the conformance kit, and of the features that it may need.
 *
 * @module
 */
import type { Store } from '../store.js'
import type { TestContext } from './test-context.js'

/**
 * What not every store can do.
 *
 * - `queue`, `counting`, `atomic`, `values`: the store's `features`.
 * - `watch`, `watchGrants`, `watchRevoked`, `holders`, `inspect`, `revoke`, `take`, `now`: its optional methods. `steal` comes with
 *   `revoke`.
 * - `handoff`: a release grants the lease to the head of the queue (`granted`) instead of only waking it (`freed`).
 * - `owners`: a grant keeps the owner of its claim, so that an owner that acquires again gets its own grant back.
 */
export type Need =
  | 'queue'
  | 'counting'
  | 'atomic'
  | 'values'
  | 'watch'
  | 'watchGrants'
  | 'watchRevoked'
  | 'holders'
  | 'inspect'
  | 'revoke'
  | 'take'
  | 'now'
  | 'handoff'
  | 'owners'

/** One behaviour. Its name is a sentence that says what is guaranteed. */
export interface Case {
  name: string
  /** The case cannot run on a store that lacks one of these. */
  needs?: readonly Need[] | undefined
  run(t: TestContext): Promise<void>
  /**
   * What is guaranteed where a need is missing. Absent: nothing is, and the report lists the case as not applicable.
   */
  otherwise?: Alternative | undefined
}

/** The guarantee that takes the place of a case, unless its own needs are missing too. */
export type Alternative = Pick<Case, 'name' | 'needs' | 'run'>

/** Needs that the members of a store reveal. The others show only in its behaviour. */
const visible: Partial<Record<Need, (store: Store) => boolean>> = {
  queue: (store) => store.features.queue,
  counting: (store) => store.features.counting,
  atomic: (store) => store.features.atomic !== false,
  values: (store) => store.features.values,
  watch: (store) => store.watch !== undefined,
  watchGrants: (store) => store.watchGrants !== undefined,
  watchRevoked: (store) => store.watchRevoked !== undefined,
  holders: (store) => store.holders !== undefined,
  inspect: (store) => store.inspect !== undefined,
  revoke: (store) => store.revoke !== undefined,
  take: (store) => store.take !== undefined,
  now: (store) => store.now !== undefined,
}

/** The needs that this store, by its own members, does not meet. */
export function lacksOf(store: Store): Need[] {
  return (Object.keys(visible) as Need[]).filter((need) => !visible[need]?.(store))
}

/** The part of a declaration that `lacksOf` can check. */
export function visibleOnly(needs: readonly Need[]): Need[] {
  return needs.filter((need) => visible[need] !== undefined)
}

/** Adds the same needs to several cases. */
export function needing(needs: readonly Need[], cases: readonly Case[]): Case[] {
  return cases.map((item) => ({ ...item, needs: [...new Set([...needs, ...(item.needs ?? [])])] }))
}
