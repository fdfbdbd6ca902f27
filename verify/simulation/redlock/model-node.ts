/**
 * One node as a few maps. It answers what the Lua answers: `test/stores/redlock/model.test.ts` sends both the same requests and
 * compares. A mutant is the same node with one mistake.
 *
 * @module
 */
import type {
  Admission,
  NodeRecord,
  NodeRelease,
  NodeReleased,
  NodeRenewal,
  NodeRenewed,
  NodeView,
  BatchRequest,
  Raise,
  BatchReply,
  NodeRevoked,
  Standing,
  Vote,
  Voted,
  VoteRequest,
  VoteReply,
} from '../../../src/stores/redlock/node.js'
import { FORMAT, isAttempt } from '../../../src/stores/redlock/keys.js'

/** Mistakes that other libraries have made, or that this one could have. */
export type NodeMutant =
  | 'raise without still mine'
  | 'max of increments'
  | 'no sitting out'
  | 'sitting out in client memory'
  | 'counters per name that expire'
  | 'returning without the counter of the others'
  | 'writer blind to readers'
  | 'release without owner check'
  | 'a guess is always good'
  | 'a batch is blind to what it raises'
  | 'raises behind a steal'

interface Entry {
  token: number
  version: number
  value: string
}

interface HeldKey {
  /** Of an exclusive lease; undefined while readers hold. */
  owner: string | undefined
  expiresAt: number
  readers: Map<string, number> | undefined
  entries: Map<string, Entry>
}

interface NodeData {
  run: string
  id: string
  state: NodeRecord['state'] | undefined
  since: number
  counter: number
  longestMs: number
  nodes: number
  manifest: string
  keys: Map<string, HeldKey>
  /** Only one mutant has these. */
  counters: Map<string, { value: number; expiresAt: number }>
}

const emptyData = (): NodeData => ({
  run: '',
  id: '',
  state: undefined,
  since: 0,
  counter: 0,
  longestMs: 0,
  nodes: 0,
  manifest: '',
  keys: new Map(),
  counters: new Map(),
})

function copyOf(data: NodeData): NodeData {
  const keys = new Map<string, HeldKey>()
  for (const [key, held] of data.keys) {
    const readers = held.readers && new Map(held.readers)
    keys.set(key, { ...held, readers, entries: new Map(held.entries) })
  }
  return { ...data, keys, counters: new Map(data.counters) }
}

export interface ModelOptions {
  name: string
  size: number
  maxTtlMs: number
  /** The node's clock in milliseconds. */
  clock: () => number
  /** Its clock when tokens are made. 0: useless, so that only counters keep tokens apart. */
  micros: () => number
  mutant?: NodeMutant | undefined
  /** Called whenever a key becomes an owner's. */
  onHeld?: ((node: string, key: string, owner: string) => void) | undefined
  /** Whether a connection to this process is subscribed to the channel of this run: then the node does not ask for its own. */
  isWitnessed?: ((run: string) => boolean) | undefined
  /** Publishes to the subscribers of a key, or of all revocations (`undefined`). Returns how many they are. */
  tell?: ((key: string | undefined, text: string) => number) | undefined
}

export class ModelNode {
  run: string
  #data: NodeData = emptyData()
  #starts = 0
  readonly #name: string
  readonly #size: number
  readonly #maxTtlMs: number
  readonly #clock: () => number
  readonly #micros: () => number
  readonly #mutant: NodeMutant | undefined
  readonly #onHeld: ((node: string, key: string, owner: string) => void) | undefined
  readonly #isWitnessed: (run: string) => boolean
  readonly #tell: (key: string | undefined, text: string) => number
  /** Of one mutant only: which client saw which server process, and when. */
  readonly #memory = new Map<string, { run: string; since: number }>()

  constructor({ name, size, maxTtlMs, clock, micros, mutant, onHeld, isWitnessed, tell }: ModelOptions) {
    this.#name = name
    this.run = `${name}/0`
    this.#size = size
    this.#maxTtlMs = maxTtlMs
    this.#clock = clock
    this.#micros = micros
    this.#mutant = mutant
    this.#onHeld = onHeld
    this.#isWitnessed = isWitnessed ?? (() => false)
    this.#tell = tell ?? (() => 0)
  }

  get votes(): boolean {
    return this.#data.run === this.run && this.#data.state === 'votes'
  }

  get counter(): number {
    return this.#data.counter
  }

  /** Makes it a node of a cluster that was founded long ago. */
  settle(): void {
    this.identify({ id: `${this.#name} of old`, known: false })
    this.admit({ as: 'founder', id: this.#data.id, manifest: '' })
    this.#data.longestMs = this.#maxTtlMs
  }

  /** What a restart would find on disk. */
  snapshot(): unknown {
    return copyOf(this.#data)
  }

  /** Another process. What it finds on disk may be everything, something older, or nothing. */
  restart(disk: unknown): void {
    this.run = `${this.#name}/${++this.#starts}`
    this.#data = disk === undefined ? emptyData() : copyOf(disk as NodeData)
  }

  /** The same process, emptied. */
  flush(): void {
    this.#data = emptyData()
  }

  /** Loses one key: a clock that jumped, an eviction, an accidental DEL. */
  expire(key: string): void {
    this.#data.keys.delete(key)
    this.#data.counters.delete(key)
  }

  /** Another library takes the key: it writes the plain key only. */
  takeAsForeigner(key: string, owner: string, ttlMs: number): boolean {
    if (this.#held(key)) return false
    const expiresAt = this.#clock() + ttlMs
    this.#data.keys.set(key, { owner, expiresAt, readers: undefined, entries: new Map() })
    return true
  }

  vote({ run, items, token }: VoteRequest, client = ''): VoteReply {
    const standing = this.#standing(run, client)
    if (standing !== 'votes') return { standing, counter: 0, micros: 0, items: [] }
    const data = this.#data
    data.longestMs = Math.max(data.longestMs, this.#maxTtlMs)
    const micros = this.#micros()
    let { counter } = data
    if (this.#mutant === 'max of increments') counter = data.counter++
    if (this.#mutant === 'counters per name that expire') counter = this.#counterOf((items[0] as Vote).key)
    const good = (token > counter && token >= micros) || this.#mutant === 'a guess is always good'
    let guess = good && token > 0 ? token : undefined
    const answers = items.map((item) => {
      const again = this.#isHeldBy(item)
      // Nothing behind a steal is raised: a reader beside a stealing reader would get the token of the victim.
      if (item.steal && !again && this.#mutant !== 'raises behind a steal') guess = undefined
      const answer = this.#vote(item)
      if (answer !== 'held' || again || item.steal || guess === undefined) return answer
      return this.#raise({ ...item, token: guess }) ? 'raised' : 'held'
    })
    const blind = this.#mutant === 'a batch is blind to what it raises'
    if (!blind && answers.includes('raised')) counter = Math.max(counter, token)
    return { standing, counter, micros, items: answers }
  }

  #isHeldBy({ key, owner }: Vote): boolean {
    const held = this.#held(key)
    return held !== undefined && this.#isMine(held, owner)
  }

  raise(items: readonly Raise[]): boolean[] {
    return items.map((item) => this.#raise(item))
  }

  renew({ run, items }: BatchRequest<NodeRenewal>, client = ''): BatchReply<NodeRenewed> {
    return { standing: this.#standing(run, client), items: items.map((item) => this.#renew(item)) }
  }

  release(items: readonly NodeRelease[]): NodeReleased[] {
    return items.map(({ key, owner, quiet }) => {
      const held = this.#held(key)
      if (held && this.#mutant === 'release without owner check') return this.#data.keys.delete(key) ? 0 : 'gone'
      if (!held || !this.#isMine(held, owner)) return 'gone'
      held.readers?.delete(owner)
      held.entries.delete(owner)
      if (held.readers && held.readers.size > 0) held.expiresAt = Math.max(...held.readers.values())
      else this.#data.keys.delete(key)
      return quiet ? 0 : this.#tell(key, `freed ${owner}`)
    })
  }

  /** Ends all leases of this key. */
  revoke(key: string): NodeRevoked {
    const held = this.#held(key)
    if (!held) return { shared: false, owners: [] }
    const owners = this.#cutOff(key, held)
    this.#tell(key, `freed ${owners.at(-1)}`)
    return { shared: held.readers !== undefined, owners }
  }

  /** The holders of this key. */
  inspect(key: string): NodeView[] {
    const held = this.#held(key)
    if (!held) return []
    const now = this.#clock()
    const owners = held.readers ? [...held.readers.keys()] : [held.owner as string]
    return owners.map((owner) => {
      const info = held.entries.get(owner)
      return {
        key,
        owner,
        shared: held.readers !== undefined,
        ttlMs: (held.readers?.get(owner) ?? held.expiresAt) - now,
        token: info ? BigInt(info.token) : undefined,
        version: info?.version ?? 0,
        heldMs: undefined,
        value: info && info.value !== '' ? info.value : undefined,
      }
    })
  }

  #cutOff(key: string, held: HeldKey): string[] {
    const owners = held.readers ? [...held.readers.keys()] : [held.owner as string]
    this.#data.keys.delete(key)
    this.#tell(undefined, JSON.stringify([key, ...owners]))
    return owners
  }

  identify({ id, known }: { id: string; known: boolean }): NodeRecord {
    const data = this.#data
    const now = this.#clock()
    if (data.run !== this.run) {
      data.state = data.run !== '' || known ? 'lost' : 'new'
      data.run = this.run
      data.id = id
      data.since = now
      data.manifest = ''
    }
    const trusting = this.#mutant === 'no sitting out' || this.#mutant === 'sitting out in client memory'
    return {
      run: data.run,
      id: data.id,
      state: trusting ? 'votes' : (data.state as NodeRecord['state']),
      ageMs: now - data.since,
      counter: data.counter,
      longestMs: data.longestMs,
      nodes: trusting ? this.#size : data.nodes,
      manifest: data.manifest,
      format: FORMAT,
    }
  }

  admit(admission: Admission): boolean {
    const data = this.#data
    if (data.run !== this.run || data.id !== admission.id) return false
    if (data.state === 'votes') return data.nodes === this.#size
    if (admission.as === 'loser') {
      data.state = 'lost'
      return false
    }
    if (admission.as === 'founder') {
      if (data.state !== 'new') return false
      data.manifest = admission.manifest
      data.counter = Math.max(data.counter, this.#micros() + 1_000_000)
    } else {
      if (this.#clock() - data.since < Math.max(data.longestMs, admission.longestMs)) return false
      const adopts = this.#mutant !== 'returning without the counter of the others'
      if (adopts) data.counter = Math.max(data.counter, admission.counter)
      data.longestMs = Math.max(data.longestMs, admission.longestMs)
    }
    data.state = 'votes'
    data.nodes = this.#size
    return true
  }

  #standing(run: string, client: string): Standing {
    if (!this.#isWitnessed(run) && run !== this.run) return 'stranger'
    if (this.#mutant === 'no sitting out') return 'votes'
    if (this.#mutant === 'sitting out in client memory') return this.#remembered(client)
    // As the scripts do: the record is compared with the run that was proven, not with what only the model knows.
    if (this.#data.run !== run || this.#data.state !== 'votes') return 'sits'
    return this.#data.nodes === this.#size ? 'votes' : 'other'
  }

  /** Of one mutant: a client that knew the process before lets the new one sit out. A client that did not cannot know. */
  #remembered(client: string): Standing {
    const now = this.#clock()
    const memory = this.#memory.get(client)
    if (memory?.run === this.run) return now - memory.since < this.#maxTtlMs ? 'sits' : 'votes'
    this.#memory.set(client, { run: this.run, since: memory ? now : Number.NEGATIVE_INFINITY })
    return memory ? 'sits' : 'votes'
  }

  #vote({ key, owner, ttlMs, shared, steal }: Vote): Voted {
    const now = this.#clock()
    let held = this.#held(key)
    if (held && this.#isMine(held, owner)) return 'held'
    if (held && steal) {
      this.#cutOff(key, held)
      held = undefined
    }
    if (held?.readers && !shared && this.#mutant === 'writer blind to readers') held = undefined
    if (held && !(shared && held.readers)) return this.#refusal(held, now)
    this.#onHeld?.(this.#name, key, owner)
    if (!shared) {
      this.#data.keys.set(key, { owner, expiresAt: now + ttlMs, readers: undefined, entries: new Map() })
      return 'held'
    }
    if (!held) {
      held = { owner: undefined, expiresAt: 0, readers: new Map(), entries: new Map() }
      this.#data.keys.set(key, held)
    }
    held.readers?.set(owner, now + ttlMs)
    held.expiresAt = Math.max(held.expiresAt, now + ttlMs)
    return 'held'
  }

  #refusal(held: HeldKey, now: number): Voted {
    let owner = held.owner ?? ''
    // The reader that expires last is the one to wait for.
    for (const [reader, expiresAt] of held.readers ?? []) {
      if (expiresAt === held.expiresAt && reader > owner) owner = reader
    }
    const info = held.entries.get(owner)
    return {
      owner,
      ttlMs: held.expiresAt - now,
      token: info ? BigInt(info.token) : undefined,
      version: info?.version,
      value: info && info.value !== '' ? info.value : undefined,
      ...(isAttempt(owner) ? {} : { foreign: true }),
    }
  }

  #raise({ key, owner, token, value }: Raise): boolean {
    const held = this.#held(key)
    const mine = held !== undefined && this.#isMine(held, owner)
    if (!mine && this.#mutant !== 'raise without still mine') return false
    const data = this.#data
    if (this.#mutant === 'counters per name that expire') {
      const value = Math.max(this.#counterOf(key), token)
      data.counters.set(key, { value, expiresAt: this.#clock() + 2 * this.#maxTtlMs })
    } else if (this.#mutant !== 'max of increments') data.counter = Math.max(data.counter, token)
    if (mine && !held.readers) held.entries.clear()
    if (mine) held.entries.set(owner, { token, version: 1, value: value ?? '' })
    // Waiters that are about to ask do not, if a majority of nodes announces this.
    if (mine && !held.readers) this.#tell(key, `taken ${owner}`)
    return true
  }

  #renew({ key, owner, ttlMs, token, value, version }: NodeRenewal): NodeRenewed {
    const now = this.#clock()
    const held = this.#held(key)
    if (!held) return 'absent'
    if (!this.#isMine(held, owner)) return held.readers ? 'absent' : 'taken'
    const { readers, entries } = held
    readers?.set(owner, Math.max(readers.get(owner) as number, now + ttlMs))
    held.expiresAt = Math.max(held.expiresAt, now + ttlMs)
    const known = entries.get(owner)
    if (value !== undefined && version > (known?.version ?? 0)) {
      entries.set(owner, { token: token || (known?.token ?? 0), version, value })
    }
    return 'ours'
  }

  #isMine(held: HeldKey, owner: string): boolean {
    return held.readers ? held.readers.has(owner) : held.owner === owner
  }

  /** The key without leases that have expired. */
  #held(key: string): HeldKey | undefined {
    const held = this.#data.keys.get(key)
    if (!held) return undefined
    const now = this.#clock()
    if (held.expiresAt <= now) {
      this.#data.keys.delete(key)
      return undefined
    }
    for (const [reader, expiresAt] of held.readers ?? []) {
      if (expiresAt > now) continue
      held.readers?.delete(reader)
      held.entries.delete(reader)
    }
    return held
  }

  #counterOf(key: string): number {
    const counter = this.#data.counters.get(key)
    return counter && counter.expiresAt > this.#clock() ? counter.value : 0
  }
}
