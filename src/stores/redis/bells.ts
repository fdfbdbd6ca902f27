/**
 * Hearing what happens to keys: one listening connection (on a cluster one per node that is listened to), opened when the
 * first watch asks for it, closed when it has been idle for a while.
 *
 * @module
 */
import type { StoreEvent, Watch } from '../../store.js'
import type { Adapter, Ear } from '../../clients/redis/adapter.js'
import { Unclaimed, endOfOwner, eventOf, grantOf } from './letters.js'
import { Mailbox } from './mailbox.js'
import type { Names } from './names.js'

/** How long a connection without any watch is kept: the next wait comes soon. */
const IDLE_MS = 10_000
/** How often what should be heard and is not is tried again. */
const AUDIT_MS = 1_000
/** After a break the first try comes soon, since most are short. */
const FIRST_RETRY_MS = 50

/** What is told of one key, or all keys, and everybody who listens to that. */
interface Channel {
  /** The key; nothing, for all of them. */
  readonly key: string
  readonly sharded: boolean
  readonly slot: number
  listeners: readonly ((event: StoreEvent) => void)[]
  /** Somebody wants to hear everything, not only what it is handed. */
  everything: boolean
  /** What is subscribed to for it, or is being. */
  names: string[]
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
  /** Puts an empty letter into this mailbox. */
  knock: (mailbox: string) => Promise<unknown>
}

export class Bells {
  readonly #adapter: Adapter
  readonly #names: Names
  readonly #options: BellsOptions
  readonly #channels = new Map<string, Channel>()
  readonly #byName = new Map<string, Channel>()
  readonly #ears = new Map<string, Ear>()
  readonly #always: boolean
  readonly #unclaimed = new Unclaimed()
  /** Of the ear, where there is only one. */
  #mailbox: Mailbox | undefined
  #mailboxes = 0
  #byMail: boolean
  #ear: string
  #auditing: NodeJS.Timeout | undefined
  #idling: NodeJS.Timeout | undefined
  #closed = false

  constructor(adapter: Adapter, names: Names, options: BellsOptions) {
    this.#adapter = adapter
    this.#names = names
    this.#options = options
    this.#always = options.always
    // Keys of one process lie in many slots there, and a connection can wait only for those of one.
    this.#byMail = !adapter.cluster
    this.#ear = names.ear
    if (this.#always) this.#hearRevocations()
  }

  /** Where those who ask now hear what they are handed. */
  get ear(): string {
    return this.#mailbox?.open ? this.#ear : this.#names.ear
  }

  /** Whoever asks now will hear what it is handed, whatever the key. */
  get hearsGrants(): boolean {
    return this.#mailbox?.open === true
  }

  watch(key: string, listener: (event: StoreEvent) => void, only?: 'granted'): Watch {
    const channel = this.#channel(key, this.#adapter.cluster)
    // Never changed while somebody calls them: whoever comes or goes meanwhile makes a list anew.
    channel.listeners = [...channel.listeners, listener]
    if (!only && !channel.everything) {
      channel.everything = true
      if (channel.address !== undefined) this.#mute(channel)
    }
    clearTimeout(this.#idling)
    this.#attend(channel)
    this.#hearRevocations()
    this.#unclaimed.claim(key, listener)
    let listening = true
    return {
      ready: channel.live || this.#settled(channel),
      live: () => channel.live && this.#channels.get(channel.key) === channel,
      close: () => {
        if (!listening) return
        listening = false
        // A function given twice listens twice.
        const at = channel.listeners.indexOf(listener)
        channel.listeners = channel.listeners.filter((_, i) => i !== at)
        if (channel.listeners.length === 0) this.#forget(channel)
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
    this.#byName.clear()
    this.#hangUp()
  }

  #hangUp(): void {
    this.#mailbox?.close()
    this.#mailbox = undefined
    for (const ear of this.#ears.values()) ear.close()
    this.#ears.clear()
  }

  #channel(key: string, sharded: boolean): Channel {
    let channel = this.#channels.get(key)
    if (!channel) {
      channel = {
        key,
        sharded,
        slot: this.#adapter.cluster && key !== '' ? this.#names.slot(key) : 0,
        listeners: [],
        everything: false,
        names: [],
        address: undefined,
        live: false,
        interrupted: false,
        settle: new Set(),
      }
      this.#channels.set(key, channel)
    }
    return channel
  }

  /** Costs nothing once there is a connection. */
  #hearRevocations(): void {
    if (!this.#channels.has('')) this.#attend(this.#channel('', false))
  }

  #namesOf({ key, everything }: Channel): string[] {
    if (key === '') return [this.#names.revocations]
    const names = everything ? [this.#names.bell(key)] : []
    if (!this.#mailbox?.open) names.push(this.#names.ownBell(key))
    return names
  }

  #settled(channel: Channel): Promise<boolean> {
    return new Promise((resolve) => {
      const settle = (live: boolean): void => {
        clearTimeout(timer)
        channel.settle.delete(settle)
        resolve(live)
      }
      // Nobody may wait for ever for a server that says nothing.
      const timer = setTimeout(() => settle(false), this.#options.timeoutMs)
      timer.unref()
      channel.settle.add(settle)
    })
  }

  #forget(channel: Channel): void {
    this.#channels.delete(channel.key)
    this.#unsubscribe(channel)
    channel.live = false
    for (const settle of channel.settle) settle(false)
    if (this.#channels.size > 1 || this.#always) return
    clearTimeout(this.#idling)
    this.#idling = setTimeout(() => {
      this.#hangUp()
      this.#channels.clear()
      this.#byName.clear()
    }, IDLE_MS)
    this.#idling.unref()
  }

  #unsubscribe(channel: Channel): void {
    const { address, names, sharded } = channel
    for (const name of names) this.#byName.delete(name)
    channel.names = []
    if (address !== undefined && names.length > 0) this.#ears.get(address)?.unsubscribe(names, sharded)
  }

  /** Subscribes to whatever is not heard and should be, or is heard in the wrong place. */
  #audit(): void {
    if (this.#closed) return
    clearTimeout(this.#auditing)
    this.#auditing = undefined
    for (const channel of this.#channels.values()) this.#attend(channel)
  }

  #attend(channel: Channel): void {
    if (this.#closed) return
    // What every node tells may be heard anywhere: not one more connection for it.
    const anywhere = channel.sharded ? undefined : this.#ears.keys().next().value
    const address = anywhere ?? this.#adapter.addressOf(channel.slot)
    if (channel.address !== undefined && channel.sharded && channel.address !== address) this.#mute(channel)
    if (channel.address === undefined && address !== undefined) this.#subscribe(channel, address)
    // On a cluster slots move without anybody telling: look now and then.
    if ((!channel.live || this.#adapter.cluster) && !this.#auditing) this.#auditIn(AUDIT_MS)
  }

  #auditIn(ms: number): void {
    clearTimeout(this.#auditing)
    this.#auditing = setTimeout(() => this.#audit(), ms)
    this.#auditing.unref()
  }

  #subscribe(channel: Channel, address: string): void {
    let ear: Ear
    try {
      ear = this.#openEar(address)
    } catch {
      for (const settle of channel.settle) settle(false)
      return
    }
    channel.address = address
    let names: string[] | undefined
    const current = (): boolean =>
      this.#channels.get(channel.key) === channel &&
      this.#ears.get(address) === ear &&
      (names === undefined || channel.names === names)
    const live = (): void => {
      if (!current()) return
      channel.live = true
      for (const settle of channel.settle) settle(true)
      // Whatever was told while nobody heard is lost: whoever waits had better look.
      if (channel.interrupted) ring(channel, { type: 'freed' })
      channel.interrupted = false
    }
    const mute = (): void => {
      if (!current()) return
      this.#mute(channel)
      for (const settle of channel.settle) settle(false)
      this.#relocate(channel)
    }
    const subscribe = (): void => {
      if (!current()) return
      names = channel.names = this.#namesOf(channel)
      for (const name of names) this.#byName.set(name, channel)
      if (names.length === 0) return live()
      const subscribed = ear.subscribe(names, channel.sharded)
      this.#mailbox?.interrupt(subscribed)
      subscribed.then(live, mute)
    }
    // How it is told what it is handed has to be known first.
    if (!this.#mailbox || this.#mailbox.open) subscribe()
    else void this.#mailbox.opened.then(subscribe)
  }

  /** Whoever served the channel serves it no longer, and the client may not know yet. */
  #relocate({ key }: Channel): void {
    const again = (): void => this.#auditIn(FIRST_RETRY_MS)
    if (this.#adapter.cluster && key !== '')
      this.#options.findOut(this.#names.bell(key)).then(again, () => this.#auditIn(AUDIT_MS / 2))
    else this.#auditIn(AUDIT_MS / 2)
  }

  #openEar(address: string): Ear {
    const known = this.#ears.get(address)
    if (known) return known
    const broken = (): void => {
      if (this.#ears.get(address) !== ear) return
      this.#lose(address)
      this.#auditIn(FIRST_RETRY_MS)
    }
    const ear = this.#adapter.listen(address, {
      message: (channel, text) => this.#hear(channel, text),
      broken,
      moved: (name) => {
        for (const channel of this.#channels.values()) {
          if (channel.address !== address || (name !== undefined && !channel.names.includes(name))) continue
          this.#mute(channel)
          this.#relocate(channel)
        }
      },
    })
    this.#ears.set(address, ear)
    if (this.#byMail) this.#openMailbox(ear, broken)
    return ear
  }

  #openMailbox(ear: Ear, broken: () => void): void {
    // Another name each time: the server may still wait for somebody at the old one, and give letters to nobody.
    this.#ear = `m${this.#names.ear}x${++this.#mailboxes}`
    const name = this.#names.mailbox(this.#ear)
    const mailbox = new Mailbox(ear, {
      name,
      timeoutMs: this.#options.timeoutMs,
      knock: () => this.#options.knock(name),
      deliver: (letter) => this.#deliver(letter),
      broken,
    })
    this.#mailbox = mailbox
    void mailbox.opened.then((open) => {
      if (open === true || this.#mailbox !== mailbox) return
      this.#mailbox = undefined
      // Not on this server, or not for this user: then by channels, on a connection that waits for nothing.
      if (open === false) this.#byMail = false
      if (mailbox.hangs) broken()
    })
  }

  #lose(address: string): void {
    const ear = this.#ears.get(address)
    this.#ears.delete(address)
    ear?.close()
    this.#mailbox?.close()
    this.#mailbox = undefined
    for (const channel of this.#channels.values()) {
      if (channel.address !== address) continue
      this.#mute(channel)
      for (const name of channel.names) this.#byName.delete(name)
      channel.names = []
    }
  }

  #mute(channel: Channel): void {
    channel.interrupted ||= channel.live
    channel.live = false
    channel.address = undefined
  }

  #hear(name: string, text: string): void {
    if (name === this.#names.revocations) return this.#options.onRevoked()
    const event = eventOf(text)
    const channel = this.#byName.get(name)
    if (event && channel) ring(channel, event)
  }

  #deliver(letter: string): void {
    const end = endOfOwner(letter)
    const key = this.#names.key(letter.slice(end + 1))
    const event = grantOf(letter, end)
    const channel = this.#channels.get(key)
    if (channel) ring(channel, event)
    else this.#unclaimed.keep(key, event)
  }
}

/** A listener that throws must not keep the event from the others, nor end the loop that reads the connection. */
function ring({ listeners }: Channel, event: StoreEvent): void {
  for (let i = 0; i < listeners.length; i++) {
    try {
      ;(listeners[i] as (event: StoreEvent) => void)(event)
    } catch {
      // Events are hints: whoever failed to act on one asks again by itself.
    }
  }
}
