import type { Random } from './random.js'

/** What kind of store the processes see. The rule is the memory store's; the way to it differs. */
export interface Shape {
  name: string
  /** One process, several instances, no network: the memory store as it is. */
  inProcess: boolean
  /** The store keeps a queue and hands off what is released. */
  queue: boolean
  counting: boolean
  atomic: boolean
  /** Requests are kept open inside the server. */
  blocks: boolean
  /** There are subscriptions at all. */
  watches: boolean
  /** Every grant is pushed to the process that asked, whatever it has subscribed to. */
  allGrants: boolean
  watchesHeld: boolean
  /** One connection keeps the order of calls, answers and pushes; a pool does not. */
  ordered: boolean
  timeoutMs: number
  maxBatch: number | undefined
}

const REMOTE: Shape = {
  name: 'queue',
  inProcess: false,
  queue: true,
  counting: true,
  atomic: true,
  blocks: false,
  watches: true,
  allGrants: false,
  watchesHeld: false,
  ordered: true,
  timeoutMs: 2_000,
  maxBatch: undefined,
}

export const SHAPES: readonly Shape[] = [
  REMOTE,
  { ...REMOTE, name: 'pool', ordered: false },
  { ...REMOTE, name: 'pool, held watched', ordered: false, watchesHeld: true },
  { ...REMOTE, name: 'pushed grants', allGrants: true },
  { ...REMOTE, name: 'pushed grants, pool', allGrants: true, ordered: false, watchesHeld: true },
  { ...REMOTE, name: 'no queue', queue: false, ordered: false },
  { ...REMOTE, name: 'no queue, slots', queue: false, counting: false, atomic: false, ordered: false },
  { ...REMOTE, name: 'no subscriptions', watches: false },
  { ...REMOTE, name: 'blocking', queue: false, blocks: true, counting: false, watches: false, ordered: false },
  { ...REMOTE, name: 'blocking, counting', queue: false, blocks: true, ordered: false },
  { ...REMOTE, name: 'batches of two', maxBatch: 2, watchesHeld: true },
  { ...REMOTE, name: 'in-process', inProcess: true, watchesHeld: true },
]

export function chooseShape(random: Random): Shape {
  const shape = random.pick(SHAPES)
  return shape.inProcess ? shape : { ...shape, timeoutMs: random.pick([300, 1_000, 2_000]) }
}
