import { StoreUnavailableError } from '../../errors.js'
import { type Adapter, text } from '../../clients/redis/adapter.js'
import { within } from './within.js'

/** How long an answer counts. */
const LOOK_EVERY_MS = 10_000
/** The first question waits for the first look, but a node that does not answer must not hold up the others. */
const FIRST_LOOK_MS = 500
/** From here on a server is as good as evicting. */
const NEARLY_FULL = 0.95

/**
 * A server that throws keys away when memory runs short throws locks away too, and says nothing. So whoever asks for a
 * lock there while that goes on is told, instead of getting one that may vanish.
 */
export class Eviction {
  readonly #adapter: Adapter
  #lookedAt = Number.NEGATIVE_INFINITY
  #first: Promise<void> | undefined
  readonly #evicted = new Map<number, number>()
  #reason: string | undefined
  /** This user may not ask: then nothing is known, and nothing refused. */
  #forbidden = false

  constructor(adapter: Adapter) {
    this.#adapter = adapter
  }

  /** Until when, by our clock, nobody needs to ask. */
  get dueAt(): number {
    if (this.#reason !== undefined) return Number.NEGATIVE_INFINITY
    return this.#forbidden ? Number.POSITIVE_INFINITY : this.#lookedAt + LOOK_EVERY_MS
  }

  /** Looks again if it is time to. Throws, or for the very first look rejects, if something speaks against granting. */
  check(now: number): Promise<void> | undefined {
    if (!this.#forbidden && now >= this.#lookedAt + LOOK_EVERY_MS) {
      const first = this.#lookedAt < 0
      this.#lookedAt = now
      const looked = this.#look()
      if (first) {
        this.#first = within(FIRST_LOOK_MS, looked).then(() => {
          this.#first = undefined
        })
      }
    }
    if (this.#first) return this.#first.then(() => this.#judge())
    this.#judge()
    return undefined
  }

  #judge(): void {
    if (this.#reason === undefined) return
    throw new StoreUnavailableError(
      `redis evicts keys and would drop locks without a word: ${this.#reason}; ` +
        'set maxmemory-policy noeviction, keep locks elsewhere, or pass { allowEviction: true }',
    )
  }

  async #look(): Promise<void> {
    try {
      const servers = await this.#adapter.masters()
      const reasons = await Promise.all(
        servers.map(async (server, nth) => this.#evidence(nth, facts(text(await server.send('INFO'))))),
      )
      this.#reason = reasons.find((reason) => reason !== undefined)
    } catch (error) {
      if (error instanceof Error && error.message.startsWith('NOPERM')) this.#forbidden = true
    }
  }

  #evidence(nth: number, info: ReadonlyMap<string, string>): string | undefined {
    const policy = info.get('maxmemory_policy')
    const most = Number(info.get('maxmemory') ?? 0)
    const evicted = Number(info.get('evicted_keys') ?? 0)
    const before = this.#evicted.get(nth) ?? evicted
    this.#evicted.set(nth, evicted)
    if (policy === undefined || policy === 'noeviction' || !(most > 0)) return undefined
    if (evicted > before) return `${policy}, ${evicted - before} keys since the last look`
    const share = Number(info.get('used_memory') ?? 0) / most
    return share > NEARLY_FULL ? `${policy}, and ${Math.round(share * 100)} % of maxmemory is used` : undefined
  }
}

function facts(info: string): Map<string, string> {
  return new Map(info.split(/\r?\n/).map((line) => line.split(/:(.*)/, 2) as [string, string]))
}
