/**
 * What a store needs of a Redis client, whichever it is.
 *
 * @module
 */

/** A reply, before anybody looked at it: text may come as a Buffer, numbers as text. */
export type Reply = unknown

export interface Adapter {
  /** Whether keys are spread over slots. */
  readonly cluster: boolean
  /** What the client puts before every key by itself. Names given to `run` include it. */
  readonly keyPrefix: string

  /** Whether what is sent now leaves at once. If not, it would wait in a queue and take effect whenever it likes. */
  ready(): boolean
  /** Closed for good: waiting is in vain. */
  closed(): boolean
  /** Why it is not ready, as far as known. */
  trouble(): unknown
  /** The last error the client told of since it was last ready. */
  readonly lastError: unknown
  /** Connects a client that would do so with its first command. */
  wake(): void
  /** Called whenever the client may have become ready, or closed, or told of an error. */
  onTurn(listener: () => void): () => void
  /** Called when what the server knew may be lost: after a reconnect, or when another server took over. */
  onDoubt(listener: () => void): () => void
  /** Called when a connection broke and nothing will tell when it is mended. */
  onShock(listener: () => void): () => void

  /** EVALSHA. All keys lie in one slot. */
  evalsha(sha: string, keys: string[], args: string[]): Promise<Reply>
  eval(source: string, keys: string[], args: string[]): Promise<Reply>
  /** Every server that holds keys, to be asked what concerns no key in particular. */
  masters(): Promise<Server[]>

  /** Which server to listen to for the events of a slot; the same for all slots unless on a cluster. Undefined: none now. */
  addressOf(slot: number): string | undefined
  /** A connection of its own for listening. It is used until it breaks, and never mended. */
  listen(address: string, on: EarEvents): Ear

  /** Takes every listener off the client until `attend()`, or until somebody waits for it to become ready. */
  rest(): void
  attend(): void
  /** Takes every listener off the client for good. */
  detach(): void
}

export interface Server {
  send(...args: string[]): Promise<Reply>
}

export interface EarEvents {
  message(channel: string, text: string): void
  /** The connection broke or could not be made. Called once at most. */
  broken(error: unknown): void
  /** This channel is no longer told here: its slot went to another server. */
  moved(channel: string | undefined): void
}

/** A connection that listens. */
export interface Ear {
  /**
   * In one command. Settles when what is told from now on will be heard; rejects if it will not. `sharded`: told within a
   * shard only.
   */
  subscribe(channels: string[], sharded: boolean): Promise<void>
  /** The same ones together. */
  unsubscribe(channels: string[], sharded: boolean): void
  /** Whether it can wait for mail, and hear channels meanwhile. */
  takesMail(): Promise<boolean>
  /**
   * Takes out what lies in this list, or waits for it: then nothing else is done on this connection. `lettersOf` reads the
   * reply.
   */
  mail(box: string): Promise<Reply>
  close(): void
}

/** At most so many letters at once. */
const LETTERS = '100'

export function takeMail(box: string): [command: string, ...args: string[]] {
  return ['BLMPOP', '0', '1', box, 'LEFT', 'COUNT', LETTERS]
}

/** What `takeMail` was answered. */
export function lettersOf(reply: Reply): Reply[] {
  return (reply as [Reply, Reply[]])[1]
}

/** By what HELLO says: RESP3, in which a connection that listens may wait as well, and a server that has BLMPOP. */
export function canTakeMail(reply: Reply): boolean {
  const facts = new Map<string, string>()
  if (Array.isArray(reply)) {
    for (let i = 0; i + 1 < reply.length; i += 2) facts.set(text(reply[i]), text(reply[i + 1]))
  } else if (reply instanceof Map) for (const [name, fact] of reply) facts.set(text(name), text(fact))
  else if (typeof reply === 'object')
    for (const [name, fact] of Object.entries(reply ?? {})) facts.set(name, text(fact))
  return facts.get('proto') === '3' && Number.parseInt(facts.get('version') ?? '0', 10) >= 7
}

export function text(reply: Reply): string {
  return typeof reply === 'string' ? reply : String(reply)
}

/** Null replies are absent values. */
export function maybeText(reply: Reply): string | undefined {
  return reply === null || reply === undefined ? undefined : text(reply)
}
