import { StoreUnavailableError } from '../../errors.js'
import { type Adapter, text } from '../../clients/redis/adapter.js'
import { within } from './within.js'

/** How long an answer counts: of a server that evicts nothing as it is set, and of one that may begin at any moment. */
const LOOK_EVERY_MS = 10_000
const LOOK_CLOSELY_MS = 1_000
/** From here on a server is as good as evicting. */
const NEARLY_FULL = 0.95

/** What is known of one server. */
interface Look {
  /** When it was last begun. */
  at: number
  /** The one under way. */
  pending: Promise<void> | undefined
  answered: boolean
  /** Until when, counted from `at`, its answer counts. */
  everyMs: number
  /** Why locks are refused there. */
  reason: string | undefined
  evicted: number | undefined
}

/**
 * A server that throws keys away when memory runs short throws locks away too, and says nothing. So whoever asks for a
 * lock there while that goes on is told, instead of getting one that may vanish. Nothing is granted before the first look
 * at its server has answered.
 */
export class Eviction {
  readonly #adapter: Adapter
  readonly #timeoutMs: number
  readonly #looks = new Map<string, Look>()
  /** This user may not ask: then nothing is known, and nothing refused. */
  #forbidden = false

  constructor(adapter: Adapter, timeoutMs: number) {
    this.#adapter = adapter
    this.#timeoutMs = timeoutMs
  }

  /** Until when, by our clock, what is known of this server counts. */
  dueAt(address: string): number {
    if (this.#forbidden) return Number.POSITIVE_INFINITY
    const look = this.#looks.get(address)
    // A look that is not answered yet must not count as one that found nothing.
    if (!look?.answered || look.pending || look.reason !== undefined) return Number.NEGATIVE_INFINITY
    return look.at + look.everyMs
  }

  /** Looks again if it is time to. Throws, or for the very first look rejects, if something speaks against granting. */
  check(address: string, now: number): Promise<void> | undefined {
    if (this.#forbidden) return undefined
    let look = this.#looks.get(address)
    if (!look) {
      look = {
        at: Number.NEGATIVE_INFINITY,
        pending: undefined,
        answered: false,
        everyMs: 0,
        reason: undefined,
        evicted: undefined,
      }
      this.#looks.set(address, look)
    }
    if (!look.pending && now >= look.at + look.everyMs) this.#begin(look, address, now)
    if (!look.answered && look.pending) return this.#first(look)
    judge(look)
    return undefined
  }

  /** The servers are others, or know nothing any more. */
  forget(): void {
    this.#looks.clear()
  }

  async #first(look: Look): Promise<void> {
    await within(this.#timeoutMs, look.pending as Promise<void>)
    judge(look)
  }

  #begin(look: Look, address: string, now: number): void {
    look.at = now
    // Should it fail, look again soon.
    look.everyMs = LOOK_CLOSELY_MS
    look.pending = this.#ask(address)
      .then((info) => this.#learn(look, info))
      .catch((error: unknown) => {
        if (error instanceof Error && error.message.startsWith('NOPERM')) this.#forbidden = true
      })
      .finally(() => {
        look.pending = undefined
      })
  }

  /** Undefined: that server is not among the masters any more. */
  async #ask(address: string): Promise<ReadonlyMap<string, string> | undefined> {
    const server = (await this.#adapter.masters()).find((each) => each.address === address)
    return server && facts(text(await server.send('INFO')))
  }

  #learn(look: Look, info: ReadonlyMap<string, string> | undefined): void {
    if (!info) return
    look.answered = true
    const policy = info.get('maxmemory_policy')
    const most = Number(info.get('maxmemory') ?? 0)
    const evicted = Number(info.get('evicted_keys') ?? 0)
    const before = look.evicted ?? evicted
    look.evicted = evicted
    look.reason = undefined
    look.everyMs = LOOK_EVERY_MS
    if (policy === undefined || policy === 'noeviction' || !(most > 0)) return
    look.everyMs = LOOK_CLOSELY_MS
    const share = Number(info.get('used_memory') ?? 0) / most
    if (evicted > before) look.reason = `${policy}, ${evicted - before} keys since the last look`
    else if (share > NEARLY_FULL) look.reason = `${policy}, and ${Math.round(share * 100)} % of maxmemory is used`
  }
}

function judge({ reason }: Look): void {
  if (reason === undefined) return
  throw new StoreUnavailableError(
    `redis evicts keys and would drop locks without a word: ${reason}; ` +
      'set maxmemory-policy noeviction, keep locks elsewhere, or pass { allowEviction: true }',
  )
}

function facts(info: string): Map<string, string> {
  return new Map(info.split(/\r?\n/).map((line) => line.split(/:(.*)/, 2) as [string, string]))
}
