/**
 * One of the N servers, as the algorithm sees it. Lua on a real server implements this (`lua-node.ts`), and so does a
 * model in the deterministic simulation; the algorithm cannot tell them apart.
 *
 * Answers come by callback instead of by promise: five nodes and three rounds per lock would cost fifteen promises, and
 * the simulation runs a hundred thousand schedules without a single turn of the event loop.
 *
 * @module
 */
import type { Blocker } from '../../store.js'

/** Called once, or never: the caller has a time limit of its own. */
export type NodeCallback<T> = (answer: T | Error) => void

/**
 * Whether a node may be counted.
 *
 * - `votes`: it has voted ever since it was admitted, and lost nothing.
 * - `sits`: it is new, or it was restarted or emptied, and has not been admitted (again).
 * - `stranger`: another server process than the one this client identified, which has to be identified first.
 * - `other`: it belongs to a Redlock with another number of nodes, whose majorities are not ours.
 */
export type Standing = 'votes' | 'sits' | 'stranger' | 'other'

/** One request for several items. `run`: the `run_id` of the server process that the client identified. */
export interface BatchRequest<Item> {
  run: string
  items: readonly Item[]
}

/** Everything one node answers to a request: one answer per item, in order; an item that failed has its error. */
export interface BatchReply<ItemReply> {
  standing: Standing
  items: readonly (ItemReply | Error)[]
}

/** Round 1: set if absent. */
export interface Vote {
  key: string
  owner: string
  ttlMs: number
  /** A reader: it may hold beside other readers. */
  shared: boolean
  /** Cuts off the present holders instead of being refused. */
  steal: boolean
  announce: boolean
  value: string | undefined
}

export interface VoteRequest extends BatchRequest<Vote> {
  /**
   * A guess. A node for which it is larger than all it knows, and not behind its clock, raises its counter at once, except for
   * a steal: one request may contain a steal and its victim, or two steals, and all would get the same token.
   */
  token: number
  /** Other processes may be about to ask for one of these keys: the node tells them if it is taken. */
  notifyWaiters: boolean
}

/** Who holds the key on a node that refused, and the version of its value there. */
export interface NodeRefusal extends Blocker {
  version?: number | undefined
}

/** `raised`: ours on this node, with the token of the request; `held`: ours without it. */
export type Voted = 'raised' | 'held' | NodeRefusal

export interface VoteReply extends BatchReply<Voted> {
  /**
   * The largest token this node knows of, for whatever name, including what this very request raised. The counter of before
   * it would give a steal a smaller token than a victim in the same request.
   */
  counter: number
  /** The node's clock: it keeps tokens growing when counters were lost. */
  micros: number
}

/** Round 2: where the key is still ours, the counter becomes at least `token`. */
export interface Raise {
  key: string
  owner: string
  token: number
  announce: boolean
  value: string | undefined
}

/** More time. Never creates, never shortens. */
export interface NodeRenewal {
  key: string
  owner: string
  ttlMs: number
  token: number
  /** Replaces the value if `version` is newer than what the node has. */
  value: string | undefined
  version: number
}

/** `absent`: nobody holds it. `taken`: another owner does. */
export type NodeRenewed = 'ours' | 'absent' | 'taken'

export interface NodeRelease {
  key: string
  owner: string
  /** Notifies no subscriber: an attempt that was never a grant, and that nobody waits for. */
  quiet: boolean
}

/** How many subscribers the released key has; `gone`: it was not ours (any more). */
export type NodeReleased = number | 'gone'

/** What a node knows about itself. `docs/adr/redlock-restart.md` explains. */
export interface NodeRecord {
  /** Of the server process. Two nodes with the same one are one node. */
  run: string
  /** Of this record: another one after every loss, so that an admission decided for an earlier one cannot apply. */
  id: string
  /** `new`: there was nothing at all. `lost`: there was something once, here or on the others. */
  state: 'new' | 'lost' | 'votes'
  /** How long ago it was first seen in this state, by its own clock. */
  ageMs: number
  counter: number
  /** The longest `maxTtl` that ever voted here. */
  longestMs: number
  /** How many nodes the Redlock has that it votes for; 0: none yet. */
  nodes: number
  /** The ids of all nodes that were found new together. */
  manifest: string
  /** Of what is kept there. Another one than ours belongs to another version of leasehold, and is left alone. */
  format: string
}

export type Admission =
  /** All nodes were new at the same moment: vote at once. */
  | { as: 'founder'; id: string; manifest: string }
  /** It sat out long enough, and this is what the others know. */
  | { as: 'returner'; id: string; counter: number; longestMs: number }
  /** Others vote already, so being empty means having lost something. */
  | { as: 'loser'; id: string }

export interface RedlockNode {
  /** For messages: `10.0.0.3:6379`. */
  readonly name: string
  vote(request: VoteRequest, done: NodeCallback<VoteReply>): void
  /** Of any standing: that the key is ours proves that the node remembers our vote, and so everything before it. */
  raise(items: readonly Raise[], done: NodeCallback<readonly (boolean | Error)[]>): void
  renew(request: BatchRequest<NodeRenewal>, done: NodeCallback<BatchReply<NodeRenewed>>): void
  release(items: readonly NodeRelease[], done: NodeCallback<readonly (NodeReleased | Error)[]>): void
  /** Answers with the record; writes one with this `id` if there is none for this run. `known`: this cluster has voted before. */
  identify(request: { id: string; known: boolean }, done: NodeCallback<NodeRecord>): void
  /** True if it votes now. */
  admit(admission: Admission, done: NodeCallback<boolean>): void
}

/** One lease on one node, as a listing shows it. */
export interface NodeView {
  key: string
  owner: string
  shared: boolean
  ttlMs: number | undefined
  token: bigint | undefined
  version: number
  heldMs: number | undefined
  value: string | undefined
}

/** A part of a listing. */
export interface NodePage {
  views: NodeView[]
  /** Keys with more readers than fit into a page: to be inspected one by one. */
  crowded: string[]
  /** Where the next page begins; undefined: this was the last. */
  next: string | undefined
}

/** The owners that were cut off, on one node. */
export interface NodeRevoked {
  shared: boolean
  owners: string[]
}

/** Beyond what the algorithm needs: for listings, and to break glass. Each request is short: a node serves one at a time. */
export interface ObservableNode extends RedlockNode {
  /** Holders of keys that begin with a prefix. One that holds throughout is on at least one page, and may be on two. */
  list(prefix: string, from: string | undefined, done: NodeCallback<NodePage>): void
  inspect(key: string, from: string | undefined, done: NodeCallback<NodePage>): void
  revoke(key: string, done: NodeCallback<NodeRevoked>): void
  time(done: NodeCallback<number>): void
}
