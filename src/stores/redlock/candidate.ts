import { StoreUnavailableError } from '../../errors.js'
import { ALL, type Answer, type Claim, type Failure } from '../../store.js'
import type { Obstacle, Raise, Vote } from './node.js'

/** One claim on its way. */
export interface Candidate {
  readonly claim: Claim
  /** Fresh for each attempt: what is late of an earlier one can neither help nor harm this one. */
  readonly owner: string
  phase: 'voting' | 'staying' | 'raising' | 'granted' | 'failed'
  /** Votes asked for and not heard. */
  asked: number
  held: number
  refused: number
  obstacles: (Obstacle | undefined)[]
  counter: number
  micros: number
  token: number
  /** Raised to the guessed token together with the vote. */
  foreseen: number
  /** Held, counted in the token, and not asked to raise yet. */
  spare: number
  raising: number
  raised: number
  stays: number
  answer: Answer | undefined
}

export function nominate(claim: Claim, owner: string, nodes: number): Candidate {
  return {
    claim,
    owner,
    phase: 'voting',
    asked: 0,
    held: 0,
    refused: 0,
    obstacles: new Array(nodes),
    counter: 0,
    micros: 0,
    token: 0,
    foreseen: 0,
    spare: 0,
    raising: 0,
    raised: 0,
    stays: 0,
    answer: undefined,
  }
}

export function voteOf({ claim, owner }: Candidate): Vote {
  const { key, ttlMs, weight, steal, announce, value } = claim
  return { key, owner, ttlMs, shared: weight !== ALL, steal: steal === true, announce: announce === true, value }
}

export function raiseOf({ claim, owner, token }: Candidate): Raise {
  const { key, value } = claim
  return { key, owner, token, announce: claim.announce === true, value }
}

/** A majority came, but so late that the lease is not one any more. */
export function tooLate(elapsedMs: number, ttlMs: number): Failure {
  const message = `redlock: a majority took ${Math.ceil(elapsedMs)} ms, and a lease of ${ttlMs} ms is not to be trusted after that`
  return { granted: 'unknown', error: new StoreUnavailableError(message) }
}
