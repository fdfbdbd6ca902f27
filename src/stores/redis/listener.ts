import type { Adapter, Ear } from '../../clients/redis/adapter.js'
import { GrantInbox } from './grant-inbox.js'
import type { Listening } from './topic.js'

/** CHECK_MS: how often a connection that only hears channels is asked whether it still works. */
const CHECK_MS = 5_000

export interface ListenerOptions {
  timeoutMs: number
  probe: (inbox: string) => Promise<unknown>
  /** Grants are to come by this list. */
  inbox: { subscriber: string; name: string } | undefined
  on: Listening
}

/** One listening connection: it is used until it breaks, and noticed when it only seems to be open. */
export class Listener {
  readonly subscriber: string | undefined
  /** Settles when it is known whether grants come by the inbox. */
  readonly opened: Promise<unknown>
  settled = false
  readonly #ear: Ear
  readonly #options: ListenerOptions
  readonly #openedAt = performance.now()
  #inbox: GrantInbox | undefined
  #checking: NodeJS.Timeout | undefined
  #closed = false

  constructor(adapter: Adapter, address: string, options: ListenerOptions) {
    this.#options = options
    const { on, inbox } = options
    const message = (channel: string, text: string): void => {
      try {
        on.message(channel, text)
      } catch {
        // Anybody may publish anything. Thrown out of the client's own event, it would end the process.
      }
    }
    this.#ear = adapter.listen(address, { message, broken: this.#break, moved: on.moved })
    this.subscriber = inbox?.subscriber
    this.opened = inbox ? this.#openInbox(inbox.name) : Promise.resolve()
    if (!inbox) {
      this.settled = true
      this.#checkLater()
    }
  }

  get inboxOpen(): boolean {
    return this.#inbox?.open === true
  }

  async subscribe(channels: string[], sharded: boolean): Promise<void> {
    const subscribed = this.#ear.subscribe(channels, sharded)
    this.#inbox?.interrupt(subscribed)
    await subscribed
  }

  unsubscribe(channels: string[], sharded: boolean): void {
    this.#ear.unsubscribe(channels, sharded)
  }

  close(): void {
    this.#closed = true
    clearTimeout(this.#checking)
    this.#inbox?.close()
    this.#ear.close()
  }

  async #openInbox(name: string): Promise<void> {
    const { timeoutMs, probe, on } = this.#options
    const inbox = new GrantInbox(this.#ear, {
      name,
      timeoutMs,
      probe: () => probe(name),
      deliver: on.grant,
      broken: this.#break,
    })
    this.#inbox = inbox
    const open = await inbox.opened
    this.settled = true
    if (open === true || this.#closed) return
    this.#inbox = undefined
    // Then by channels, on a connection that blocks on nothing.
    if (open === false) on.noInbox()
    if (inbox.blocked) this.#break()
    else this.#checkLater()
  }

  #checkLater(): void {
    if (this.#closed) return
    this.#checking = setTimeout(() => this.#check(), CHECK_MS)
    this.#checking.unref()
  }

  #check(): void {
    const late = setTimeout(this.#break, this.#options.timeoutMs)
    late.unref()
    this.#ear
      .ping()
      .then(() => this.#checkLater(), this.#break)
      .finally(() => clearTimeout(late))
  }

  readonly #break = (): void => {
    if (this.#closed) return
    this.close()
    this.#options.on.broken(performance.now() - this.#openedAt)
  }
}
