import { hostname } from 'node:os'
import type { Health, HolderRow } from './protocol.js'

/** What was seen of one holder over several samples. */
export interface HealthFacts {
  firstSeenAt: number
  /** When a renewal was last seen. */
  renewedAt: number | undefined
}

/** What else is known of its process. */
export interface ProcessEvidence {
  publishedAt: number | undefined
  publishingEndedAt: number | undefined
  process: 'running' | 'missing' | undefined
  session: boolean
  /** Its process says that its renewals fail. */
  atRisk: boolean
}

/**
 * SILENT_SHARE: leasehold renews when two thirds of the time are left. A holder with less than this share left has missed a
 * renewal, with some room for a slow store.
 */
const SILENT_SHARE = 0.55

/** Whether the holder is alive, as far as there is evidence. No guess: without evidence it is `unknown`. */
export function healthOf(row: HolderRow, facts: HealthFacts, now: number, evidence: ProcessEvidence): Health {
  const { publishedAt, process } = evidence
  const session = evidence.session && !row.foreign ? true : undefined
  const health: Health = { state: 'unknown', renewedAt: facts.renewedAt, publishedAt, process, session }
  // A session store lists nothing whose session has ended.
  if (row.ends === undefined) return { ...health, state: session ? 'alive' : 'unknown' }
  if (row.foreign) return health
  const left = row.ends - now
  const isSilent = left < (row.ttlMs ?? left) * SILENT_SHARE
  const endedAt = evidence.publishingEndedAt
  const stoppedPublishing = endedAt !== undefined && (facts.renewedAt ?? 0) < endedAt
  // A host of the same name elsewhere has other processes: a renewal proves more than the list of processes here.
  const isMissing = process === 'missing' && (facts.renewedAt === undefined || isSilent)
  if (isMissing) return { ...health, state: 'gone' }
  // Its own word is more exact than a renewal that was not seen.
  if (evidence.atRisk) return { ...health, state: 'at-risk' }
  if (isSilent || stoppedPublishing) return { ...health, state: 'silent' }
  const isFresh = row.since !== undefined && now - row.since < (row.ttlMs ?? 0) / 2
  const isSeen = facts.renewedAt !== undefined || publishedAt !== undefined || isFresh
  return { ...health, state: isSeen ? 'alive' : 'unknown' }
}

/** Looks for processes of this host, once per sample each. */
export class LocalProcesses {
  readonly #prefix = `${hostname().slice(0, 64)}:`
  #known = new Map<string, 'running' | 'missing'>()

  /** Forget what was found: processes end. */
  refresh(): void {
    this.#known = new Map()
  }

  /** Undefined: it is a process of another host, or none of leasehold's. */
  find(holder: string): 'running' | 'missing' | undefined {
    if (!holder.startsWith(this.#prefix)) return undefined
    const pid = /^(\d{1,10}):/.exec(holder.slice(this.#prefix.length))?.[1]
    if (pid === undefined) return undefined
    let found = this.#known.get(pid)
    if (!found) this.#known.set(pid, (found = exists(Number(pid)) ? 'running' : 'missing'))
    return found
  }
}

/** True also for a process of another user. */
function exists(pid: number): boolean {
  try {
    return process.kill(pid, 0)
  } catch (error) {
    return (error as NodeJS.ErrnoException).code !== 'ESRCH'
  }
}
