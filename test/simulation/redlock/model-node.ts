/**
 * One node as a few maps. Says what the Lua says: `test/stores/redlock/model.test.ts` asks both the same questions and
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
  Question,
  Raise,
  Reply,
  Standing,
  Vote,
  Voted,
  VoteQuestion,
  Votes,
} from '../../../src/stores/redlock/node.js'
import { FORMAT } from '../../../src/stores/redlock/keys.js'
import { isAttempt } from '../../../src/stores/redlock/register.js'

/** Mistakes that others have made, or that we could have. */
export type Mutant =
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

interface Info {
  token: number
  version: number
  value: string
}

interface Held {
  /** Of an exclusive lease; undefined while readers hold. */
  owner: string | undefined
  expiresAt: number
  readers: Map<string, number> | undefined
  info: Map<string, Info>
}

interface Data {
  run: string
  id: string
  state: NodeRecord['state'] | undefined
  since: number
  counter: number
  longestMs: number
  nodes: number
  manifest: string
  keys: Map<string, Held>
  /** Only the mutant has these. */
  counters: Map<string, { value: number; expiresAt: number }>
}

const blank = (): Data => ({
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

function copyOf(data: Data): Data {
  const keys = new Map<string, Held>()
  for (const [key, held] of data.keys) {
    const readers = held.readers && new Map(held.readers)
    keys.set(key, { ...held, readers, info: new Map(held.info) })
  }
  return { ...data, keys, counters: new Map(data.counters) }
}

export interface ModelOptions {
  name: string
  size: number
  maxTtlMs: number
  /** The node's clock in milliseconds. */
  clock: () => number
  /** What it says of the time when tokens are made. 0: useless, so that only counters keep tokens apart. */
  micros: () => number
  mutant?: Mutant | undefined
  /** Told whenever a key becomes an owner's. */
  onHeld?: ((node: string, key: string, owner: string) => void) | undefined
}

export class ModelNode {
  run: string
  #data: Data = blank()
  #starts = 0
  readonly #name: string
  readonly #size: number
  readonly #maxTtlMs: number
  readonly #clock: () => number
  readonly #micros: () => number
  readonly #mutant: Mutant | undefined
  readonly #onHeld: ((node: string, key: string, owner: string) => void) | undefined
  /** Of the mutant only: which client saw which process when. */
  readonly #memory = new Map<string, { run: string; since: number }>()

  constructor({ name, size, maxTtlMs, clock, micros, mutant, onHeld }: ModelOptions) {
    this.#name = name
    this.run = `${name}/0`
    this.#size = size
    this.#maxTtlMs = maxTtlMs
    this.#clock = clock
    this.#micros = micros
    this.#mutant = mutant
    this.#onHeld = onHeld
  }

  get votes(): boolean {
    return this.#data.run === this.run && this.#data.state === 'votes'
  }

  get counter(): number {
    return this.#data.counter
  }

  /** As it is in a cluster that has been there for long. */
  settle(): void {
    this.look({ id: `${this.#name} of old`, known: false })
    this.admit({ as: 'founder', id: this.#data.id, manifest: '' })
    this.#data.longestMs = this.#maxTtlMs
  }

  /** As it would be found in a snapshot on disk. */
  snapshot(): unknown {
    return copyOf(this.#data)
  }

  /** Another process. What it finds on disk may be everything, something older, or nothing. */
  restart(disk: unknown): void {
    this.run = `${this.#name}/${++this.#starts}`
    this.#data = disk === undefined ? blank() : copyOf(disk as Data)
  }

  /** The same process, emptied. */
  flush(): void {
    this.#data = blank()
  }

  /** A clock that jumped, an eviction, an accidental DEL. */
  expire(key: string): void {
    this.#data.keys.delete(key)
    this.#data.counters.delete(key)
  }

  /** Another library, which knows the plain key only. */
  takeAsForeigner(key: string, owner: string, ttlMs: number): boolean {
    if (this.#held(key)) return false
    const expiresAt = this.#clock() + ttlMs
    this.#data.keys.set(key, { owner, expiresAt, readers: undefined, info: new Map() })
    return true
  }

  vote({ run, items, token }: VoteQuestion, client = ''): Votes {
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
      // Behind a steal nothing is raised: a reader beside a stealing reader would get the token of the victim.
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

  renew({ run, items }: Question<NodeRenewal>, client = ''): Reply<NodeRenewed> {
    return { standing: this.#standing(run, client), items: items.map((item) => this.#renew(item)) }
  }

  release(items: readonly NodeRelease[]): NodeReleased[] {
    return items.map(({ key, owner }) => {
      const held = this.#held(key)
      if (held && this.#mutant === 'release without owner check') return this.#data.keys.delete(key) ? 0 : 'gone'
      if (!held || !this.#isMine(held, owner)) return 'gone'
      held.readers?.delete(owner)
      held.info.delete(owner)
      if (held.readers && held.readers.size > 0) held.expiresAt = Math.max(...held.readers.values())
      else this.#data.keys.delete(key)
      // Nobody listens to a model.
      return 0
    })
  }

  look({ id, known }: { id: string; known: boolean }): NodeRecord {
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
    if (run !== this.run) return 'stranger'
    if (this.#mutant === 'no sitting out') return 'votes'
    if (this.#mutant === 'sitting out in client memory') return this.#remembered(client)
    if (!this.votes) return 'sits'
    return this.#data.nodes === this.#size ? 'votes' : 'other'
  }

  /** A client that knew the process before lets the new one sit out. One that did not cannot know. */
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
      this.#data.keys.delete(key)
      held = undefined
    }
    if (held?.readers && !shared && this.#mutant === 'writer blind to readers') held = undefined
    if (held && !(shared && held.readers)) return this.#obstacle(held, now)
    this.#onHeld?.(this.#name, key, owner)
    if (!shared) {
      this.#data.keys.set(key, { owner, expiresAt: now + ttlMs, readers: undefined, info: new Map() })
      return 'held'
    }
    if (!held) {
      held = { owner: undefined, expiresAt: 0, readers: new Map(), info: new Map() }
      this.#data.keys.set(key, held)
    }
    held.readers?.set(owner, now + ttlMs)
    held.expiresAt = Math.max(held.expiresAt, now + ttlMs)
    return 'held'
  }

  #obstacle(held: Held, now: number): Voted {
    let owner = held.owner ?? ''
    // The last of the readers is the one to wait for.
    for (const [reader, expiresAt] of held.readers ?? []) {
      if (expiresAt === held.expiresAt && reader > owner) owner = reader
    }
    const info = held.info.get(owner)
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
    if (mine && !held.readers) held.info.clear()
    if (mine) held.info.set(owner, { token, version: 1, value: value ?? '' })
    return true
  }

  #renew({ key, owner, ttlMs, token, value, version }: NodeRenewal): NodeRenewed {
    const now = this.#clock()
    const held = this.#held(key)
    if (!held) return 'absent'
    if (!this.#isMine(held, owner)) return held.readers ? 'absent' : 'taken'
    const { readers, info } = held
    readers?.set(owner, Math.max(readers.get(owner) as number, now + ttlMs))
    held.expiresAt = Math.max(held.expiresAt, now + ttlMs)
    const known = info.get(owner)
    if (value !== undefined && version > (known?.version ?? 0)) {
      info.set(owner, { token: token || (known?.token ?? 0), version, value })
    }
    return 'ours'
  }

  #isMine(held: Held, owner: string): boolean {
    return held.readers ? held.readers.has(owner) : held.owner === owner
  }

  /** Without what has expired. */
  #held(key: string): Held | undefined {
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
      held.info.delete(reader)
    }
    return held
  }

  #counterOf(key: string): number {
    const counter = this.#data.counters.get(key)
    return counter && counter.expiresAt > this.#clock() ? counter.value : 0
  }
}
