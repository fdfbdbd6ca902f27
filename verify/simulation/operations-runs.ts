import type { Lock } from '../../src/core/lock.js'
import type { Actor, Operation } from './actor.js'
import { ALL } from './judge.js'

/** `runOnce`, under its old and its new name. */
type RunOnce = (key: string, run: (lock: Lock) => Promise<string>, options: object) => Promise<string>

export interface RunOnceOperation extends Operation {
  ttl: number
  wait: number
  hold: number
  fails?: boolean
  abortAfter?: number
}

/** Longer than any schedule: within it one result counts. */
const RETAIN_MS = 3_600_000

export async function runOnce(actor: Actor, op: RunOnceOperation): Promise<void> {
  const { name, ttl } = op
  const { locks, judge } = actor
  const call = ((locks as unknown as { runOnce?: RunOnce }).runOnce ??
    (locks as unknown as { once: RunOnce }).once) as RunOnce
  const aborting = op.abortAfter === undefined ? undefined : actor.abortAfter(op.abortAfter)
  const wait = actor.asks(`once:${name}`, name, op.wait, { exclusive: false, ttlMs: ttl })
  const options: Record<string, unknown> = { ttl, wait: op.wait, retain: RETAIN_MS }
  if (aborting) options['signal'] = aborting.signal
  let ran = false
  const recorded = judge.results.has(name)
  const run = async (held: Lock): Promise<string> => {
    ran = true
    actor.retained.push(held)
    wait.settled = actor.process.local
    const facts = { weight: ALL, capacity: ALL, token: held.fencingToken, held: () => held.isHeld, what: `#${op.id}` }
    const belief = judge.begins(wait, facts)
    judge.results.runs(op, name)
    await actor.sleep(op.hold)
    judge.ends(belief)
    if (op.fails) throw new Error('the job fails')
    return `run #${op.id}`
  }
  try {
    const result = await call.call(locks, name, run, options)
    judge.results.returned(op, name, result)
    if (!ran) {
      wait.settled = actor.process.local
      actor.inTime(wait, { abortedAt: aborting?.abortedAt(), calls: 2 })
    }
  } catch (error) {
    const { code, message } = error as { code?: string; message?: string }
    // A waiter behind an open request of its own process sees the record when that request ends.
    const isBehind = actor.shape.blocks && wait.before > 0
    if (recorded && code === 'LOCK_TIMEOUT' && !isBehind && actor.undisturbed(wait.asked)) {
      judge.accuse(
        'record not found',
        `${actor.label} "${name}": #${op.id} times out although a result was recorded before`,
      )
    }
    if (ran && (code === 'LOCK_LOST' || code === 'STORE_UNAVAILABLE' || message === 'the job fails')) return
    actor.refused(wait, error, { abortedAt: aborting?.abortedAt(), calls: 3 })
  }
}

export interface ScheduleOperation extends Operation {
  cron: string
  ttl: number
  hold: number
  lasts: number
  options: object
  stopsItself?: boolean
}

/** A job by the clock of the store. */
export async function schedule(actor: Actor, op: ScheduleOperation): Promise<void> {
  const { judge } = actor
  const job = async (): Promise<void> => {
    await actor.sleep(op.hold)
    // The wait for the job that calls it must end.
    if (op.stopsItself) await running.stop()
  }
  const running = actor.locks.schedule(op.name, op.cron, job, { ttl: op.ttl, unref: true, ...op.options })
  for (const event of ['started', 'elsewhere', 'skipped', 'missed', 'lost', 'error'] as const) {
    running.on(event, (facts) => {
      const { tick, first } = facts as { tick: Date | undefined; first?: Date }
      actor.note(`schedule ${event} ${tick?.toISOString() ?? ''}`)
      if (tick) judge.ticks.report(actor, event, tick.getTime(), first?.getTime())
    })
  }
  await actor.sleep(op.lasts)
  await running.stop()
}
