/**
 * Hearing what happens to keys: one listening connection (on a cluster one per node that is listened to), opened when the
 * first watch asks for it, closed when it has been idle for a while.
 *
 * @module
 */
import type { StoreEvent, Watch } from '../../store.js'
import type { Adapter, Ear } from '../../clients/redis/adapter.js'
import type { Names } from './names.js'
import { slotOf } from './slots.js'

/** How long a connection without any watch is kept: the next wait comes soon. */
const IDLE_MS = 10_000
/** How often what should be heard and is not is tried again. */
const AUDIT_MS = 1_000
/** After a break the first try comes soon, since most are short. */
const FIRST_RETRY_MS = 50

/** What is told of one key, or all keys, and everybody who listens to that. */
interface Channel {
  readonly name: string
  /** Its name, and the name of what is told there to us alone. */
  readonly names: string[]
  readonly sharded: boolean
  readonly slot: number
  readonly listeners: Set<(event: StoreEvent) => void>
  /** Where it is subscribed, or is being. */
  address: string | undefined
  live: boolean
  /** It was live before: what happened since may have been missed. */
  interrupted: boolean
  readonly settle: Set<(live: boolean) => void>
}

export interface BellsOptions {
  timeoutMs: number
  /** Kept open although nobody waits: for those who want to hear of revocations in any case. */
  always: boolean
  onRevoked: () => void
  /** Makes the client ask the cluster who serves the slot of this channel now. */
  findOut: (channel: string) => Promise<unknown>
}

export class Bells {
  readonly #adapter: Adapter
  readonly #names: Names
  readonly #timeoutMs: number
  readonly #onRevoked: () => void
  readonly #findOut: (channel: string) => Promise<unknown>
  readonly #channels = new Map<string, Channel>()
  readonly #ears = new Map<string, Ear>()
  readonly #always: boolean
  #auditing: NodeJS.Timeout | undefined
  #idling: NodeJS.Timeout | undefined
  #closed = false

  constructor(adapter: Adapter, names: Names, options: BellsOptions) {
    this.#adapter = adapter
    this.#names = names
    this.#timeoutMs = options.timeoutMs
    this.#always = options.always
    this.#onRevoked = options.onRevoked
    this.#findOut = options.findOut
    if (this.#always) this.#hearRevocations()
  }

  watch(key: string, listener: (event: StoreEvent) => void): Watch {
    const channel = this.#channel(this.#names.bells(key), this.#adapter.cluster)
    // A function given twice listens twice.
    const own = (event: StoreEvent): void => listener(event)
    channel.listeners.add(own)
    this.#hearRevocations()
    clearTimeout(this.#idling)
    this.#audit()
    return {
      ready: channel.live || this.#settled(channel),
      live: () => channel.live && this.#channels.get(channel.name) === channel,
      close: () => {
        if (channel.listeners.delete(own) && channel.listeners.size === 0) this.#forget(channel)
      },
    }
  }

  /** The connection may lead to a server that is no longer the one. On a cluster the address tells; else listen anew. */
  refresh(): void {
    if (!this.#adapter.cluster) for (const address of [...this.#ears.keys()]) this.#lose(address)
    this.#audit()
  }

  close(): void {
    this.#closed = true
    clearTimeout(this.#auditing)
    clearTimeout(this.#idling)
    for (const channel of this.#channels.values()) {
      channel.live = false
      for (const settle of channel.settle) settle(false)
    }
    this.#channels.clear()
    for (const ear of this.#ears.values()) ear.close()
    this.#ears.clear()
  }

  #channel(names: [name: string, ...own: string[]], sharded: boolean): Channel {
    const [name] = names
    let channel = this.#channels.get(name)
    if (!channel) {
      channel = {
        name,
        names,
        sharded,
        slot: this.#adapter.cluster ? slotOf(name) : 0,
        listeners: new Set(),
        address: undefined,
        live: false,
        interrupted: false,
        settle: new Set(),
      }
      this.#channels.set(name, channel)
    }
    return channel
  }

  /** Costs nothing once there is a connection. */
  #hearRevocations(): void {
    this.#channel([this.#names.revocations], false)
    this.#audit()
  }

  #settled(channel: Channel): Promise<boolean> {
    return new Promise((resolve) => {
      const settle = (live: boolean): void => {
        clearTimeout(timer)
        channel.settle.delete(settle)
        resolve(live)
      }
      // Nobody may wait for ever for a server that says nothing.
      const timer = setTimeout(() => settle(false), this.#timeoutMs)
      timer.unref()
      channel.settle.add(settle)
    })
  }

  #forget(channel: Channel): void {
    this.#channels.delete(channel.name)
    if (channel.address !== undefined) this.#ears.get(channel.address)?.unsubscribe(channel.names, channel.sharded)
    channel.live = false
    for (const settle of channel.settle) settle(false)
    if (this.#channels.size > 1 || this.#always) return
    clearTimeout(this.#idling)
    this.#idling = setTimeout(() => {
      for (const ear of this.#ears.values()) ear.close()
      this.#ears.clear()
      this.#channels.clear()
    }, IDLE_MS)
    this.#idling.unref()
  }

  /** Subscribes to whatever is not heard and should be, or is heard in the wrong place. */
  #audit(): void {
    if (this.#closed) return
    let missing = false
    for (const channel of this.#channels.values()) {
      // What every node tells may be heard anywhere: not one more connection for it.
      const anywhere = channel.sharded ? undefined : this.#ears.keys().next().value
      const address = anywhere ?? this.#adapter.addressOf(channel.slot)
      if (channel.address !== undefined && channel.sharded && channel.address !== address) this.#mute(channel)
      if (channel.address === undefined && address !== undefined) this.#subscribe(channel, address)
      missing ||= !channel.live
    }
    // On a cluster slots move without anybody telling: look now and then.
    if (missing || (this.#adapter.cluster && this.#channels.size > 0)) this.#auditIn(AUDIT_MS)
  }

  #auditIn(ms: number): void {
    clearTimeout(this.#auditing)
    this.#auditing = setTimeout(() => this.#audit(), ms)
    this.#auditing.unref()
  }

  #subscribe(channel: Channel, address: string): void {
    let ear: Ear
    try {
      ear = this.#ear(address)
    } catch {
      for (const settle of channel.settle) settle(false)
      return
    }
    channel.address = address
    const current = (): boolean => this.#channels.get(channel.name) === channel && this.#ears.get(address) === ear
    ear.subscribe(channel.names, channel.sharded).then(
      () => {
        if (!current()) return
        channel.live = true
        for (const settle of channel.settle) settle(true)
        // Whatever was told while nobody heard is lost: whoever waits had better look.
        if (channel.interrupted) for (const listener of [...channel.listeners]) listener({ type: 'freed' })
        channel.interrupted = false
      },
      () => {
        if (!current()) return
        this.#mute(channel)
        for (const settle of channel.settle) settle(false)
        this.#relocate(channel)
      },
    )
  }

  /** Whoever served the channel serves it no longer, and the client may not know yet. */
  #relocate(channel: Channel): void {
    const again = (): void => this.#auditIn(FIRST_RETRY_MS)
    if (this.#adapter.cluster) this.#findOut(channel.name).then(again, () => this.#auditIn(AUDIT_MS / 2))
    else this.#auditIn(AUDIT_MS / 2)
  }

  #ear(address: string): Ear {
    let ear = this.#ears.get(address)
    if (!ear) {
      ear = this.#adapter.listen(address, {
        message: (channel, text) => this.#hear(channel, text),
        broken: () => {
          if (this.#ears.get(address) !== ear) return
          this.#lose(address)
          this.#auditIn(FIRST_RETRY_MS)
        },
        moved: (name) => {
          for (const channel of this.#channels.values()) {
            if (channel.address !== address || (name !== undefined && !channel.names.includes(name))) continue
            this.#mute(channel)
            this.#relocate(channel)
          }
        },
      })
      this.#ears.set(address, ear)
    }
    return ear
  }

  #lose(address: string): void {
    const ear = this.#ears.get(address)
    this.#ears.delete(address)
    ear?.close()
    for (const channel of this.#channels.values()) if (channel.address === address) this.#mute(channel)
  }

  #mute(channel: Channel): void {
    channel.interrupted ||= channel.live
    channel.live = false
    channel.address = undefined
  }

  #hear(name: string, text: string): void {
    if (name === this.#names.revocations) return this.#onRevoked()
    const event = eventOf(text)
    const channel = this.#channels.get(this.#names.bellOf(name))
    if (event && channel) for (const listener of [...channel.listeners]) listener(event)
  }
}

/** `granted <token> <ttlMs> <owner>`, `revoked <owner>`, `changed` */
function eventOf(text: string): StoreEvent | undefined {
  const grant = /^granted (\d+) (\d+) ([^]*)$/.exec(text)
  if (grant) {
    return { type: 'granted', token: BigInt(grant[1] as string), ttlMs: Number(grant[2]), owner: grant[3] as string }
  }
  if (text === 'changed') return { type: 'changed' }
  return text.startsWith('revoked ') ? { type: 'revoked', owner: text.slice('revoked '.length) } : undefined
}
