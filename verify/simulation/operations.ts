import type { Lock } from '../../src/core/lock.js'
import type { LockGroup } from '../../src/primitives/all.js'
import type { Actor, Operation } from './actor.js'
import { ALL, type Belief, type Wait } from './judge.js'

/** Options of an operation that asks for a lock or for permits. */
export interface LockOperation extends Operation {
  style: 'acquire' | 'try' | 'with'
  mode?: 'shared'
  weight?: number
  permits?: number
  ttl: number
  /** Infinity: for ever. */
  wait: number
  hold: number
  maxHold?: number
  autoRenew?: boolean
  /** After half of the hold: `extend` to this ttl. */
  extend?: number
  /** When the user reads `lock.signal`: as soon as it is held, or only after the release. */
  reads?: 'early' | 'late'
  abortAfter?: number
  /** With the signal that all of the process share. */
  shutdown?: boolean
}

function optionsOf(op: LockOperation, signal: AbortSignal | undefined): Record<string, unknown> {
  const { mode, weight, ttl, wait, maxHold, autoRenew } = op
  const given = { mode, weight, ttl, maxHold, autoRenew, signal }
  const options: Record<string, unknown> = Object.fromEntries(
    Object.entries(given).filter(([, value]) => value !== undefined),
  )
  if (op.style !== 'try') options['wait'] = wait === Number.POSITIVE_INFINITY ? 'forever' : wait
  return options
}

/** A lock, shared or exclusive, or permits of a semaphore. */
export async function lock(actor: Actor, op: LockOperation): Promise<void> {
  const { locks } = actor
  const { permits, style, name } = op
  const aborting = op.abortAfter === undefined ? undefined : actor.abortAfter(op.abortAfter)
  const options = optionsOf(op, aborting?.signal ?? (op.shutdown ? actor.shutdown : undefined))
  const key = `${permits === undefined ? 'lock' : 'semaphore'}:${name}`
  const exclusive = permits === undefined && op.mode === undefined
  const wait = actor.asks(key, name, style === 'try' ? 0 : op.wait, {
    exclusive,
    ttlMs: Math.min(op.ttl, op.maxHold ?? op.ttl),
    inTurn: permits === undefined,
  })
  const semaphore = permits === undefined ? undefined : locks.semaphore(name, permits)
  // One attempt asks one slot after the other, where the store cannot count.
  const slots = permits === undefined || actor.shape.counting ? 1 : permits
  let endedHeld: boolean | undefined
  try {
    if (style === 'with') {
      const run = async (held: Lock): Promise<string> => {
        granted(actor, wait, held, slots)
        const belief = begin(actor, op, wait, held)
        await hold(actor, op, held, belief)
        endedHeld = held.isHeld
        actor.ends(belief)
        return 'done'
      }
      await (semaphore ? semaphore.use(run, options) : locks.withLock(name, run, options))
      if (endedHeld === false) {
        actor.judge.accuse(
          'resolved without lock',
          `${actor.label} ${key}: withLock resolves, but it was not held at the end`,
        )
      }
      return
    }
    const target = semaphore ?? {
      acquire: (o: object) => locks.acquire(name, o),
      tryAcquire: (o: object) => locks.tryAcquire(name, o),
    }
    const held = style === 'try' ? await target.tryAcquire(options) : await target.acquire(options)
    if (!held) {
      wait.settled = actor.process.local
      actor.note(`finds ${key} busy`)
      actor.inTime(wait, { abortedAt: aborting?.abortedAt(), calls: slots })
      return
    }
    granted(actor, wait, held, slots)
    const belief = begin(actor, op, wait, held)
    await hold(actor, op, held, belief)
    await release(actor, op, held, belief)
  } catch (error) {
    if ((error as { code?: string }).code === 'LOCK_LOST' && endedHeld !== undefined) return
    actor.refused(wait, error, { abortedAt: aborting?.abortedAt(), calls: slots })
  }
}

function granted(actor: Actor, wait: Wait, held: Lock, calls: number): void {
  wait.settled = actor.process.local
  actor.retained.push(held)
  actor.inTime(wait, { calls })
  if (!actor.weather.calm) return
  const decided = actor.judge.decidedAt.get(actor.judge.grantOf(held.fencingToken))
  if (decided === undefined) return
  const acquiredAt = held.acquiredAt.getTime()
  const early = actor.process.clockAt(decided) - acquiredAt
  if (early > actor.weather.latency[1] + 1.5 || acquiredAt > actor.process.clockAt(actor.process.local) + 1) {
    actor.judge.accuse('acquiredAt', `${actor.label} ${wait.key}: ${Math.round(early)} ms before it was granted`)
  }
  const { waitedMs } = held as { waitedMs?: number }
  const waited = actor.process.local - wait.asked
  if (waitedMs !== undefined && Math.abs(waitedMs - waited) > actor.weather.latency[1] + 1.5) {
    actor.judge.accuse('waitedMs', `${actor.label} ${wait.key}: ${waitedMs} instead of ${waited}`)
  }
}

function begin(actor: Actor, op: LockOperation, wait: Wait, held: Lock): Belief {
  const { permits } = op
  const whole = permits === undefined && op.mode === undefined
  const belief = actor.judge.begins(wait, {
    weight: whole ? ALL : (op.weight ?? 1),
    capacity: permits ?? ALL,
    token: held.fencingToken,
    held: () => held.isHeld,
    what: `#${op.id}`,
    ttlMs: Math.max(op.ttl, op.extend ?? 0),
    // With `maxHold`, there is nothing left to renew some time.
    renews: op.autoRenew !== false && op.maxHold === undefined,
  })
  if (op.reads === 'early') watchSignal(actor, held, belief)
  return belief
}

/** A signal that was taken aborts when the event loop next turns after the lock could no longer be trusted. */
function watchSignal(actor: Actor, held: Lock, belief: Belief): void {
  const { signal } = held
  const look = (again = false): void => {
    if (signal.aborted || belief.over || actor.process.crashed || actor.process.frozen) return
    const left = actor.sim.probe(() => held.remainingMs)
    if (left > 0) actor.sim.plan(actor.sim.now + actor.process.trueMs(left) + 10, () => look())
    // In the very instant in which its timer fires, nobody is late.
    else if (!again) actor.sim.plan(actor.sim.now + 1, () => look(true))
    else
      actor.judge.accuse(
        'late signal',
        `${actor.label} ${belief.key}: not held any more, and its signal has not aborted`,
      )
  }
  actor.sim.plan(actor.process.local + 1, look)
}

async function hold(actor: Actor, op: LockOperation, held: Lock, belief: Belief): Promise<void> {
  const { maxHold } = op
  const start = actor.process.local
  await step(actor, op.hold / 2, held, belief)
  if (op.extend !== undefined) await extend(actor, op, held)
  await step(actor, op.hold / 2, held, belief)
  if (!actor.weather.calm || actor.takenAt.length > 0 || op.extend !== undefined || belief.revoked) return
  const { ttl, autoRenew = true } = op
  const lasted = actor.process.local - start
  const promised = autoRenew ? (maxHold ?? Number.POSITIVE_INFINITY) : Math.min(ttl, maxHold ?? ttl)
  // Redlock's grants are that much shorter before the core subtracts its own.
  const drift = (Math.min(ttl, promised) * 0.01 + 2) * (actor.shape.redlock ? 2 : 1)
  // A grant to an open request counts from when that was sent, at most half of its ttl ago.
  const cut = actor.shape.blocks && !autoRenew ? Math.min(ttl / 2, promised) : 0
  if (!held.isHeld && lasted + cut < promised - drift - actor.weather.latency[1] * 2 - 2) {
    actor.judge.accuse(
      'lost in calm weather',
      `${actor.label} ${belief.key}: held for less than ${Math.round(lasted)} ms`,
    )
  } else if (held.isHeld && lasted > promised + 1) {
    actor.judge.accuse('held too long', `${actor.label} ${belief.key}: ${Math.round(lasted)} ms instead of ${promised}`)
  }
}

async function extend(actor: Actor, op: LockOperation, held: Lock): Promise<void> {
  try {
    await held.extend(op.extend as number)
  } catch (error) {
    const { code } = error as { code?: string }
    if (code !== 'LOCK_LOST' && code !== 'STORE_UNAVAILABLE')
      actor.judge.accuse('wrong error', `extend: ${String(error)}`)
  }
}

async function step(actor: Actor, ms: number, held: Lock, belief: Belief): Promise<void> {
  if (held.isHeld) actor.judge.writes(belief)
  await actor.sleep(ms)
  if (held.isHeld) actor.judge.writes(belief)
}

async function release(actor: Actor, op: LockOperation, held: Lock, belief: Belief): Promise<void> {
  const believed = held.isHeld
  actor.ends(belief)
  const released = await held.release()
  if (!released && believed && actor.weather.calm && actor.takenAt.length === 0 && !belief.revoked) {
    actor.judge.accuse('lost in calm weather', `${actor.label} ${belief.key}: release() is false`)
  }
  if (held.isHeld) actor.judge.accuse('held after release', `${actor.label} ${belief.key}`)
  if (op.reads === 'late' && !held.signal.aborted) {
    actor.judge.accuse(
      'signal after release',
      `${actor.label} ${belief.key}: a signal read after release() is not aborted`,
    )
  }
}

/** Several names together. */
export interface GroupOperation extends Operation {
  names: string[]
  style: 'acquire' | 'with'
  ttl: number
  wait: number
  hold: number
  abortAfter?: number
}

export async function group(actor: Actor, op: GroupOperation): Promise<void> {
  const { locks } = actor
  const aborting = op.abortAfter === undefined ? undefined : actor.abortAfter(op.abortAfter)
  const options: Record<string, unknown> = { ttl: op.ttl, wait: op.wait }
  if (aborting) options['signal'] = aborting.signal
  const waits = [...new Set(op.names)].map((name) =>
    actor.asks(`lock:${name}`, name, op.wait, { exclusive: true, ttlMs: op.ttl }),
  )
  let endedHeld: boolean | undefined
  const use = async (held: LockGroup): Promise<void> => {
    actor.retained.push(held)
    const beliefs = held.locks.map((each) => {
      const wait = waits.find(({ name }) => name === each.name) as Wait
      return actor.judge.begins(wait, {
        weight: ALL,
        capacity: ALL,
        token: each.fencingToken,
        held: () => each.isHeld,
        what: `#${op.id}`,
      })
    })
    await actor.sleep(op.hold)
    endedHeld = held.isHeld
    for (const belief of beliefs) actor.ends(belief)
  }
  try {
    if (op.style === 'with') {
      await locks.withLocks(op.names, use, options)
      if (endedHeld === false) {
        actor.judge.accuse('resolved without lock', `${actor.label} ${op.names.join()}: withLocks resolves`)
      }
      return
    }
    const held = await locks.acquireAll(op.names, options)
    await use(held)
    await held.release()
  } catch (error) {
    if ((error as { code?: string }).code === 'LOCK_LOST') {
      for (const wait of waits) wait.settled ??= actor.process.local
      return
    }
    // Which of them was busy is not known: their refusals count together.
    const [first] = waits as [Wait]
    for (const wait of waits) wait.settled ??= actor.process.local
    const { code, lock: busy } = error as { code?: string; lock?: string }
    const asked = code === 'LOCK_TIMEOUT' ? (waits.find(({ name }) => name === busy) ?? first) : first
    // What is left of the wait for the last name may be shorter than an answer takes; and a group that gives up waits a
    // little until it has released what it already held.
    actor.refused(asked, error, { abortedAt: aborting?.abortedAt(), calls: waits.length + 2, group: true })
  }
}
