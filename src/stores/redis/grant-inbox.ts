/**
 * Grants are pushed to a Redis list owned by this process; the listening connection blocks on it (BLMPOP). Redis serves
 * blocked clients before it flushes the reply of the script that released, so the waiter wakes first; a PUBLISH would wake it
 * second. And one name more needs no subscription.
 *
 * @module
 */
import type { LeaseId } from '../../store.js'
import { type RedisSubscriber, type RedisReply, grantMessagesOf, text } from '../../clients/redis/adapter.js'

export interface GrantInboxOptions {
  /** The key of the list. */
  name: string
  timeoutMs: number
  /** Pushes an empty message to the list, by the connection that asks for locks. */
  probe: () => Promise<unknown>
  deliver: (message: string) => void
  /** It was open, and is not any more. */
  broken: () => void
}

/** BLOCK_MS: how long one BLMPOP waits. Its answer, also an empty one, shows that the connection still works. */
const BLOCK_MS = 5_000

export class GrantInbox {
  /**
   * Settles when it is known whether grants arrive by the inbox. True: they do. False: they never will, on this
   * server or for this user. Undefined: the connection broke.
   */
  readonly opened: Promise<boolean | undefined>
  /** Grants arrive. */
  open = false
  /** The connection is blocked on the list: if nothing arrives, it is of no use any more. */
  blocked = false
  readonly #subscriber: RedisSubscriber
  readonly #options: GrantInboxOptions
  /** Other commands on the same connection meanwhile. */
  readonly #commands = new Set<Promise<unknown>>()
  #waiting = false
  #closed = false
  #silence: NodeJS.Timeout | undefined

  constructor(subscriber: RedisSubscriber, options: GrantInboxOptions) {
    this.#subscriber = subscriber
    this.#options = options
    this.opened = this.#begin()
  }

  /** A blocked connection does nothing else. So it is woken for this command, and blocks again when that is answered. */
  interrupt(command: Promise<unknown>): void {
    const over = (): void => void this.#commands.delete(command)
    this.#commands.add(command)
    command.then(over, over)
    if (this.#waiting) this.#wake()
  }

  close(): void {
    this.#closed = true
    this.open = false
    clearTimeout(this.#silence)
  }

  /** A user without the right, or a client in another database, would wait for grants that never arrive: so try. */
  async #begin(): Promise<boolean | undefined> {
    const { name, timeoutMs, probe } = this.#options
    let timer: NodeJS.Timeout | undefined
    try {
      if (!(await this.#subscriber.supportsGrantInbox())) return false
      this.blocked = true
      const first = this.#subscriber.popGrants(name, BLOCK_MS)
      // Whether it failed is looked at below.
      first.catch(() => {})
      await probe()
      const late = new Promise<undefined>((resolve) => {
        timer = setTimeout(() => resolve(undefined), timeoutMs)
        timer.unref()
      })
      if (grantMessagesOf(await Promise.race([first, late])).length === 0) return false
    } catch (error) {
      return isRefusal(error) ? false : undefined
    } finally {
      clearTimeout(timer)
    }
    if (this.#closed) return undefined
    this.open = true
    process.nextTick(this.#wait)
    return true
  }

  readonly #wait = (): void => {
    if (this.#closed) return
    // Not for those that are sent meanwhile: where each is followed by the next before it is answered, no grant would ever arrive.
    if (this.#commands.size > 0) void Promise.allSettled(this.#commands).then(this.#block)
    else this.#block()
  }

  readonly #block = (): void => {
    if (this.#closed) return
    this.#waiting = true
    // A connection that only seems to be open would leave every hand-off to the heartbeat of its waiter. The timer runs on between two
    // BLMPOPs: to clear it when a grant arrives would delay the waiter.
    if (this.#silence) this.#silence.refresh()
    else this.#silence = setTimeout(this.#break, BLOCK_MS + this.#options.timeoutMs).unref()
    this.#subscriber.popGrants(this.#options.name, BLOCK_MS).then(this.#take, this.#break)
    // A command that came meanwhile may be sent behind this BLMPOP, and would lie there until that ends: node-redis
    // sends a SUBSCRIBE only when the UNSUBSCRIBE of the same channel has been answered.
    if (this.#commands.size > 0) this.#wake()
  }

  #wake(): void {
    this.#waiting = false
    this.#options.probe().catch(this.#break)
  }

  readonly #take = (reply: RedisReply): void => {
    this.#waiting = false
    const messages = grantMessagesOf(reply)
    for (let i = 0; i < messages.length; i++) {
      const message = text(messages[i])
      if (message === '' || this.#closed) continue
      try {
        this.#options.deliver(message)
      } catch {
        // A message that cannot be read, or a listener that throws, must not end the loop: all later grants would be lost.
      }
    }
    // Code that was just handed something runs first, up to where it waits for something else.
    process.nextTick(this.#wait)
  }

  readonly #break = (): void => {
    if (this.#closed) return
    this.close()
    this.#options.broken()
  }
}

/** The server said no, and will do so again. */
function isRefusal(error: unknown): boolean {
  if (!(error instanceof Error)) return false
  return /^(ERR|NOPERM|WRONGTYPE)\b/.test(error.message) || isRefusal(error.cause)
}

// What the scripts tell subscribers; common.lua says how it is written.

/** A grant as it was pushed. A token of 0: the owner is first in the queue, there is room, and it may ask. */
export interface GrantMessage {
  /** The plain key. */
  plain: string
  owner: string
  token: bigint
  /** By the server's clock, in milliseconds. It may have lain in a buffer since it was sent. */
  endMs: number
  /** How many tokens are reserved from this one on, if there are more than this one. */
  tokens: number | undefined
}

/** How many tokens the scripts reserve for a grant that wants more than one: common.lua. */
export const RESERVED_TOKENS = 32

const TOKEN_END = 16
const TIME_END = TOKEN_END + 13
const END_END = TIME_END + 1

/** What a message says. Somebody waits for it: so in as few steps as can be. */
export function grantOf(message: string): GrantMessage {
  const end = message.indexOf('\0', END_END)
  return {
    plain: message.slice(end + 1),
    owner: message.slice(END_END, end),
    token: BigInt(message.slice(0, TOKEN_END)),
    endMs: Number(message.slice(TOKEN_END, TIME_END)),
    tokens: message[TIME_END] === '+' ? RESERVED_TOKENS : undefined,
  }
}

/** The leases that a message on the channel of revocations names; `keyOf` makes a key of a plain one. */
export function revokedOf(message: string, keyOf: (plain: string) => string): LeaseId[] {
  const [plain = '', ...rows] = message.split('\0')
  const key = keyOf(plain)
  return rows
    .filter((row) => row.length > TOKEN_END)
    .map((row) => {
      const token = BigInt(row.slice(0, TOKEN_END))
      return { key, owner: row.slice(TOKEN_END), ...(token > 0n ? { token } : {}) }
    })
}
