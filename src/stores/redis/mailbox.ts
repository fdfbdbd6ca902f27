/**
 * What those who wait in this process are handed comes by mail: into a list at which the listening connection waits, and
 * out of which it is taken by that. A message on a channel would be written after the answer to whoever let go, and woken
 * for it is whoever comes first; somebody who waits at a list is served before. And nothing has to be subscribed to for
 * one name more.
 *
 * @module
 */
import { type Ear, type Reply, lettersOf, text } from '../../clients/redis/adapter.js'

export interface MailboxOptions {
  /** The key of the list. */
  name: string
  timeoutMs: number
  /** Puts an empty letter into it, by the connection that asks for locks. */
  knock: () => Promise<unknown>
  deliver: (letter: string) => void
  /** It was open, and is not any more. */
  broken: () => void
}

export class Mailbox {
  /**
   * Settles when that is known: true, letters arrive; false, they never will, not on this server or not for this user;
   * undefined, the connection broke.
   */
  readonly opened: Promise<boolean | undefined>
  /** Letters arrive. */
  open = false
  /** The ear waits for them: if they do not arrive, it is of no use any more. */
  hangs = false
  readonly #ear: Ear
  readonly #options: MailboxOptions
  /** What is being said on the same connection meanwhile. */
  readonly #talks = new Set<Promise<unknown>>()
  #waiting = false
  #closed = false

  constructor(ear: Ear, options: MailboxOptions) {
    this.#ear = ear
    this.#options = options
    this.opened = this.#begin()
  }

  /** A connection that waits for mail does nothing else. So it is called away for this, and waits again when it is done. */
  interrupt(talk: Promise<unknown>): void {
    const over = (): void => void this.#talks.delete(talk)
    this.#talks.add(talk)
    talk.then(over, over)
    if (!this.#waiting) return
    this.#waiting = false
    this.#options.knock().catch(this.#break)
  }

  close(): void {
    this.#closed = true
    this.open = false
  }

  /** Whoever may not, or whose other connection is in another database, would wait for letters that never arrive: so try. */
  async #begin(): Promise<boolean | undefined> {
    const { name, timeoutMs, knock } = this.#options
    let timer: NodeJS.Timeout | undefined
    try {
      if (!(await this.#ear.takesMail())) return false
      this.hangs = true
      const first = this.#ear.mail(name)
      // Whether it failed is looked at below.
      first.catch(() => {})
      await knock()
      const late = new Promise<undefined>((resolve) => {
        timer = setTimeout(() => resolve(undefined), timeoutMs)
        timer.unref()
      })
      if (!(await Promise.race([first, late]))) return false
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
    if (this.#talks.size > 0) return void Promise.allSettled(this.#talks).then(this.#wait)
    this.#waiting = true
    this.#ear.mail(this.#options.name).then(this.#take, this.#break)
  }

  readonly #take = (reply: Reply): void => {
    this.#waiting = false
    const letters = lettersOf(reply)
    for (let i = 0; i < letters.length; i++) {
      const letter = text(letters[i])
      if (letter === '' || this.#closed) continue
      try {
        this.#options.deliver(letter)
      } catch {
        // A message that cannot be read, or a listener that throws, must not end the loop: all later grants would be lost.
      }
    }
    // Whoever was just handed something goes first, up to where it waits for something else.
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
