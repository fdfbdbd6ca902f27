import { guarded } from '../core/guarded.js'
import type { Locks } from '../locks.js'
import { InvalidOptionError } from '../errors.js'
import { reasonOf } from '../util/reason.js'
import { redact } from '../util/redact.js'
import type { LossHistory } from './history.js'
import type { ReleaseAction } from './protocol.js'

/** ACTIONS_KEPT: in memory, for the page. A user who needs all of them gives `onAction`. */
const ACTIONS_KEPT = 200
/** LONGEST_BODY: bytes of a request. A name has 255 characters, and a holder not many more. */
export const LONGEST_BODY = 16_384

/** What the page asks for: release this name, which was held by these holders when the button was pressed. */
interface ReleaseRequest {
  kind: string
  name: string
  holders: string[]
}

export interface ReleaseOutcome {
  status: 200 | 400 | 409 | 503
  body: { released?: string[]; error?: string }
}

/** Takes locks away by hand, and remembers each time. */
export class Releases {
  readonly #locks: Locks
  readonly #losses: LossHistory
  readonly #actions: ReleaseAction[]
  readonly #onAction: ((action: ReleaseAction) => void) | undefined

  constructor(
    locks: Locks,
    losses: LossHistory,
    actions: ReleaseAction[],
    onAction: ((action: ReleaseAction) => void) | undefined,
  ) {
    this.#locks = locks
    this.#losses = losses
    this.#actions = actions
    this.#onAction = onAction
  }

  async release(body: unknown, by: string): Promise<ReleaseOutcome> {
    const request = requestFrom(body)
    if (!request) return { status: 400, body: { error: 'kind, name and holders are needed' } }
    const { kind, name } = request
    try {
      const now = await this.#locks.inspect(name, { kind })
      const others = now.holders.filter(({ holder }) => !request.holders.includes(holder))
      // Between looking and pressing, the lock may have gone to somebody who is alive.
      if (others.length > 0) return { status: 409, body: { error: 'it is held by another holder now; look again' } }
      const cut = await this.#locks.forceRelease(name, { kind })
      const action: ReleaseAction = { at: Date.now(), kind, name, by, holders: cut.map(({ holder }) => holder) }
      this.#record(action)
      this.#losses.forced(action, cut)
      return { status: 200, body: { released: action.holders } }
    } catch (error) {
      if (error instanceof InvalidOptionError) return { status: 400, body: { error: error.message } }
      const message = redact(reasonOf(error))
      // It may have worked although the store did not say so.
      this.#record({ at: Date.now(), kind, name, by, holders: request.holders, error: message })
      return { status: 503, body: { error: message } }
    }
  }

  #record(action: ReleaseAction): void {
    this.#actions.push(action)
    if (this.#actions.length > ACTIONS_KEPT) this.#actions.shift()
    // The user's own log. An error there would be answered as a release that failed, although the lock has been taken away.
    guarded(() => this.#onAction?.(action))
  }
}

function requestFrom(body: unknown): ReleaseRequest | undefined {
  const { kind, name, holders } = (body ?? {}) as Record<string, unknown>
  if (typeof kind !== 'string' || typeof name !== 'string' || !Array.isArray(holders)) return undefined
  if (!holders.every((holder) => typeof holder === 'string')) return undefined
  return { kind, name, holders: holders as string[] }
}
