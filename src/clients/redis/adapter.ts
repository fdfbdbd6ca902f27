/**
 * What a store needs of a Redis client, whichever it is.
 *
 * @module
 */

/** A reply, before anybody looked at it: text may come as a Buffer, numbers as text. */
export type RedisReply = unknown

export interface Adapter {
  /** The same object for all adapters of one client. */
  readonly identity: object
  /** Whether keys are spread over slots. */
  readonly cluster: boolean
  /** The prefix that the client itself puts before every key. Keys given to `evalsha` and `eval` include it. */
  readonly keyPrefix: string

  /** Whether what is sent now leaves at once. If not, it would wait in a queue and take effect whenever it likes. */
  ready(): boolean
  /** Closed for good: waiting is in vain. */
  closed(): boolean
  /** Why it is not ready, as far as known. */
  whyNotReady(): unknown
  /** The last error the client told of since it was last ready. */
  readonly lastError: unknown
  /** Connects a client that would do so with its first command. */
  wake(): void
  /** Called whenever the client may have become ready, or closed, or told of an error. */
  onStateChange(listener: () => void): () => void
  /**
   * Called when what a server knew may be lost: after a reconnect, or when another server took over. `affected`: which
   * slots that concerns; absent: all of them.
   */
  onPossibleLoss(listener: (affected?: (slot: number) => boolean) => void): () => void
  /** Called when a connection broke and nothing will tell when it is back. */
  onConnectionLost(listener: () => void): () => void

  /** EVALSHA. All keys lie in one slot. */
  evalsha(sha: string, keys: string[], args: string[]): Promise<RedisReply>
  eval(source: string, keys: string[], args: string[]): Promise<RedisReply>
  /** On a cluster: looks who serves which slot now, and tells `onPossibleLoss` of slots that changed hands. */
  compareMasters(): void
  /** Every server that holds keys, to be asked what concerns no key in particular. */
  masters(): Promise<RedisServer[]>

  /** Which server to listen to for the events of a slot; the same for all slots unless on a cluster. Undefined: none now. */
  addressOf(slot: number): string | undefined
  /** A connection of its own to that server, for commands whose effect depends on the connection. Undefined: there is no way. */
  readonly dedicate?: ((address: string) => DedicatedConnection) | undefined
  /** A connection of its own for listening. It is used until it breaks, and never repaired. */
  listen(address: string, on: SubscriberEvents): RedisSubscriber

  /** Takes every listener off the client until `attend()`, or until somebody waits for it to become ready. */
  rest(): void
  attend(): void
  /** Takes every listener off the client for good. */
  detach(): void
}

export interface RedisServer {
  /** As `addressOf` names it. */
  readonly address: string
  send(...args: string[]): Promise<RedisReply>
}

/** Used until it breaks: then `send` rejects, and `broken` is true. */
export interface DedicatedConnection extends Pick<RedisServer, 'send'> {
  readonly broken: boolean
  close(): void
}

export interface SubscriberEvents {
  message(channel: string, text: string): void
  /** The connection broke or could not be made. Called once at most. */
  broken(error: unknown): void
  /** Messages of this channel no longer arrive here: its slot went to another server. Undefined: of any channel. */
  moved(channel: string | undefined): void
}

/** A connection that listens. */
export interface RedisSubscriber {
  /**
   * Subscribes to all channels in one command. Settles when messages that are published from now on will arrive;
   * rejects if they will not. `sharded`: channels whose messages are published within a shard only.
   */
  subscribe(channels: string[], sharded: boolean): Promise<void>
  /** The `run_id` of the server process at the other end of this very connection. To be called before anything is subscribed to. */
  serverRun(): Promise<string>
  /** Settles when the server answered, so that a connection that only seems to be open is noticed. */
  ping(): Promise<unknown>
  /** Ends a subscription: the channels are those of one `subscribe`, all together. */
  unsubscribe(channels: string[], sharded: boolean): void
  /** Whether the connection can block on a list, and receive messages of channels meanwhile. */
  supportsGrantInbox(): Promise<boolean>
  /**
   * Takes the messages out of this list, or blocks on it for this long: then nothing else is done on this connection.
   * `grantMessagesOf` reads the reply.
   */
  popGrants(inbox: string, waitMs: number): Promise<RedisReply>
  close(): void
}

/** MOST_GRANTS: grants that one BLMPOP takes out. A burst comes in few replies, and no reply is long. */
const MOST_GRANTS = '100'

export function popGrantsCommand(inbox: string, waitMs: number): [command: string, ...args: string[]] {
  return ['BLMPOP', String(waitMs / 1_000), '1', inbox, 'LEFT', 'COUNT', MOST_GRANTS]
}

/** The messages in the reply to `popGrants`; none, if it ended without (its time passed, or CLIENT UNBLOCK). */
export function grantMessagesOf(reply: RedisReply): RedisReply[] {
  const messages: unknown = Array.isArray(reply) ? reply[1] : undefined
  return Array.isArray(messages) ? messages : []
}

/** By what HELLO says: RESP3, in which a connection that listens may wait as well, and a server that has BLMPOP. */
export function canPopGrants(reply: RedisReply): boolean {
  const facts = new Map<string, string>()
  if (Array.isArray(reply)) {
    for (let i = 0; i + 1 < reply.length; i += 2) facts.set(text(reply[i]), text(reply[i + 1]))
  } else if (reply instanceof Map) for (const [name, fact] of reply) facts.set(text(name), text(fact))
  else if (typeof reply === 'object')
    for (const [name, fact] of Object.entries(reply ?? {})) facts.set(name, text(fact))
  return facts.get('proto') === '3' && Number.parseInt(facts.get('version') ?? '0', 10) >= 7
}

/** From the reply to `INFO server`. */
export function runIdOf(reply: RedisReply): string {
  const run = /^run_id:(\w+)/m.exec(text(reply))?.[1]
  if (run === undefined) throw new Error('the server does not tell its run_id')
  return run
}

export function text(reply: RedisReply): string {
  return typeof reply === 'string' ? reply : String(reply)
}

/** Null replies are absent values. */
export function maybeText(reply: RedisReply): string | undefined {
  return reply === null || reply === undefined ? undefined : text(reply)
}
