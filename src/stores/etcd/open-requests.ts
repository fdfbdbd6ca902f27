/**
 * The acquire calls that are not answered yet. A release without a token ends them too: overtaken by it, their transactions would be
 * granted the key afterwards, for an owner that nobody uses any more.
 *
 * @module
 */
import { StoreUnavailableError } from '../../errors.js'
import type { Answer, Claim, LeaseId } from '../../store.js'

/** One claim of an acquire call. */
interface OpenRequest {
  readonly answered: Promise<unknown>
  /** Its owner has released it meanwhile. */
  released: boolean
}

const idOf = ({ key, owner }: Pick<LeaseId, 'key' | 'owner'>): string => `${key}\0${owner}`

export class OpenRequests {
  /** By key and owner. The same owner may ask twice at the same time. */
  readonly #requests = new Map<string, Set<OpenRequest>>()

  /** `call` acquires. What its owner releases meanwhile is not answered as granted, because the release removes it. */
  async during(claims: readonly Claim[], atomic: boolean, call: () => Promise<Answer[]>): Promise<Answer[]> {
    const answered = call()
    const requests = claims.map((claim) => this.#add(claim, answered))
    try {
      const answers = await answered
      if (!requests.some(({ released }) => released)) return answers
      // All or none: with one of them gone, the others have to be released by the caller.
      if (atomic && answers.some(({ granted }) => granted === true)) {
        return answers.map(() => ({ granted: 'unknown', error: releasedMeanwhile() }))
      }
      return answers.map((answer, i) =>
        requests[i]?.released && answer.granted === true ? { granted: false } : answer,
      )
    } finally {
      for (const [i, claim] of claims.entries()) this.#remove(claim, requests[i] as OpenRequest)
    }
  }

  /** Settles when what this owner asked for has been answered: the same promise for all of one call. Undefined: nothing is open. */
  end(lease: LeaseId): Promise<unknown> | undefined {
    const requests = lease.token === undefined ? this.#requests.get(idOf(lease)) : undefined
    if (!requests) return undefined
    for (const request of requests) request.released = true
    const [first, ...others] = [...requests].map(({ answered }) => answered)
    return others.length === 0 ? first : Promise.allSettled([first, ...others])
  }

  #add(claim: Claim, answered: Promise<unknown>): OpenRequest {
    const request = { answered, released: false }
    const id = idOf(claim)
    const requests = this.#requests.get(id)
    if (requests) requests.add(request)
    else this.#requests.set(id, new Set([request]))
    return request
  }

  #remove(claim: Claim, request: OpenRequest): void {
    const id = idOf(claim)
    const requests = this.#requests.get(id)
    if (requests?.delete(request) && requests.size === 0) this.#requests.delete(id)
  }
}

const releasedMeanwhile = (): StoreUnavailableError =>
  new StoreUnavailableError('etcd: one of the names was released while they were acquired')
