import type { Store } from '../../src/store.js'
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
  /** The server holds requests open until they are granted or their time is up. */
  blocks: boolean
  /** There are subscriptions at all. */
  watches: boolean
  /** Every grant is pushed to the process that asked, whatever it has subscribed to. */
  allGrants: boolean
  watchesHeld: boolean
  /** One connection keeps the order of calls, answers and pushes; a pool does not. */
  ordered: boolean
  /** Calls are answered in the turn in which they are made, as by a file on this machine. Pushes are not. */
  atOnce: boolean
  /** The store makes mistakes: it throws, and answers with what is no answer. */
  odd: boolean
  /** Redlock's own store over models of its nodes, each behind the network by itself. */
  redlock: boolean
  timeoutMs: number
  maxBatch: Store['maxBatch']
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
  atOnce: false,
  odd: false,
  redlock: false,
  timeoutMs: 2_000,
  maxBatch: undefined,
}

export const SHAPES: readonly Shape[] = [
  REMOTE,
  { ...REMOTE, name: 'pool', ordered: false },
  { ...REMOTE, name: 'pool, held watched', ordered: false, watchesHeld: true },
  { ...REMOTE, name: 'pushed grants', allGrants: true, maxBatch: { acquire: 2, renew: 4, release: 2, take: 2 } },
  { ...REMOTE, name: 'pushed grants, pool', allGrants: true, ordered: false, watchesHeld: true },
  { ...REMOTE, name: 'no queue', queue: false, ordered: false },
  { ...REMOTE, name: 'no queue, slots', queue: false, counting: false, atomic: false, ordered: false },
  { ...REMOTE, name: 'no subscriptions', watches: false },
  { ...REMOTE, name: 'blocking', queue: false, blocks: true, counting: false, watches: false, ordered: false },
  { ...REMOTE, name: 'blocking, counting', queue: false, blocks: true, ordered: false },
  { ...REMOTE, name: 'batches of two', maxBatch: 2, watchesHeld: true },
  { ...REMOTE, name: 'file', atOnce: true, watchesHeld: true },
  { ...REMOTE, name: 'odd', odd: true, ordered: false, watchesHeld: true },
  {
    ...REMOTE,
    name: 'redlock',
    redlock: true,
    queue: false,
    counting: false,
    atomic: false,
    ordered: false,
    watchesHeld: true,
    timeoutMs: 1_400,
  },
  { ...REMOTE, name: 'in-process', inProcess: true, watchesHeld: true },
]

export function chooseShape(random: Random): Shape {
  const first = random.pick(SHAPES)
  // A schedule on Redlock costs as much as ten others.
  const shape = first.redlock && random.chance(0.5) ? random.pick(SHAPES) : first
  return shape.inProcess || shape.redlock ? shape : { ...shape, timeoutMs: random.pick([300, 1_000, 2_000]) }
}
