import type { Actor, Operation } from './actor.js'
import { ALL, type Belief } from './judge.js'

export interface ElectionOperation extends Operation {
  ttl: number
  /** How long a leader works before it returns. */
  hold: number
  /** When the candidate gives up. */
  lasts: number
  resigns?: boolean
}

/** After its signal, a candidate that led has to release, and each call may take its time. */
const CALLS_AT_END = 3

export async function election(actor: Actor, op: ElectionOperation): Promise<void> {
  const { judge, process } = actor
  const stop = actor.abortAfter(op.lasts)
  const campaign = actor.locks.election(op.name, { ttl: op.ttl })
  actor.retained.push(campaign)
  let wait = actor.asks(`election:${op.name}`, op.name, Number.POSITIVE_INFINITY, { exclusive: true })
  const work = async ({ term, signal }: { term: bigint; signal: AbortSignal }): Promise<void> => {
    const held = (): boolean => campaign.isLeader
    const belief: Belief = judge.begins(wait, {
      weight: ALL,
      capacity: ALL,
      token: term,
      held,
      what: `#${op.id}`,
      ttlMs: op.ttl,
    })
    if (campaign.isLeader) judge.writes(belief)
    const aborted = new Promise<void>((resolve) => signal.addEventListener('abort', () => resolve(), { once: true }))
    if (!signal.aborted) await Promise.race([actor.sleep(op.hold), aborted])
    if (op.resigns) void campaign.resign()
    judge.ends(belief)
    wait = actor.asks(`election:${op.name}`, op.name, Number.POSITIVE_INFINITY, { exclusive: true })
  }
  try {
    // The real process must be able to end, whatever becomes of a simulated one.
    await campaign.run(work, { signal: stop.signal, unref: true })
  } catch (error) {
    const closed = actor.closing && (error as { code?: string }).code === 'CLOSED'
    if (!closed) actor.judge.accuse('wrong error', `${actor.label} election: ${String(error)}`)
  }
  wait.settled ??= process.local
  const end = stop.abortedAt()
  const most = CALLS_AT_END * (actor.shape.timeoutMs + 10)
  if (end !== undefined && process.local > end + most) {
    judge.accuse('late abort', `${actor.label} election: ended ${Math.round(process.local - end)} ms after its signal`)
  } else if (end === undefined && !actor.closing) {
    judge.accuse('campaign ends', `${actor.label} election: nobody stopped it`)
  }
}

export interface ObserveOperation extends Operation {
  lasts: number
}

/** Terms come in order. */
export async function observe(actor: Actor, op: ObserveOperation): Promise<void> {
  const stop = actor.abortAfter(op.lasts)
  let last = -1n
  for await (const { term } of actor.locks.election(op.name).observe({ signal: stop.signal })) {
    if (term < last) actor.judge.accuse('term order', `${actor.label} observes ${term} after ${last}`)
    last = term
  }
}

export interface LimiterOperation extends Operation {
  key: string
  cost: number
  rule: { limit: number; per: number; burst: number }
  waits: boolean
  abortAfter: number
}

export async function limiter(actor: Actor, op: LimiterOperation): Promise<void> {
  const { process, judge } = actor
  const asked = process.local
  const stop = actor.abortAfter(op.abortAfter)
  judge.allowances.asked(op.key, asked)
  // One for all, so that takes of one turn travel together.
  const limited = (actor.limiter ??= actor.locks.limiter(op.name, op.rule))
  try {
    const result = op.waits
      ? await limited.wait(op.key, { signal: stop.signal, cost: op.cost })
      : await limited.take(op.key, op.cost)
    // A take that was decided long ago may be answered late, also to the next one who waits.
    const decided = actor.undisturbed(asked) ? asked : asked - actor.shape.timeoutMs
    if (result.allowed) judge.allowances.took(op.key, op.cost, op.rule, decided, process.local)
    else if (op.waits) judge.accuse('wrong error', `${actor.label} limiter: waited for nothing`)
  } catch (error) {
    const { code, message } = error as { code?: string; message?: string }
    const isExpected =
      code === 'STORE_UNAVAILABLE'
        ? !actor.undisturbed(asked)
        : code === 'CLOSED'
          ? actor.closing
          : message === 'aborted by the user'
    if (!isExpected) judge.accuse('wrong error', `${actor.label} limiter: ${String(error)}`)
  }
  const end = stop.abortedAt()
  if (op.waits && end !== undefined && process.local > end + 5 && end > asked) {
    judge.accuse('late abort', `${actor.label} limiter: ended ${Math.round(process.local - end)} ms after its signal`)
  }
}
