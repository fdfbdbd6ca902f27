import { DistributedLock } from '../../src/primitives/distributed-lock.js'
import type { Actor, Operation } from './actor.js'
import { ALL, type Belief, type Wait } from './judge.js'

export interface RequestOperation extends Operation {
  mode?: 'shared'
  steal?: boolean
  ifAvailable?: boolean
  hold: number
  abortAfter?: number
}

const DEFAULT_TTL_MS = 30_000

/** Web Locks. The callback does not see how long its lock lasts, so its belief is taken from the events of its lease. */
export async function request(actor: Actor, op: RequestOperation): Promise<void> {
  const { judge, process } = actor
  const shared = op.mode === 'shared'
  const alone = op.steal === true || op.ifAvailable === true
  const aborting = alone || op.abortAfter === undefined ? undefined : actor.abortAfter(op.abortAfter)
  const options: Record<string, unknown> = {}
  for (const option of ['mode', 'steal', 'ifAvailable'] as const)
    if (op[option] !== undefined) options[option] = op[option]
  if (aborting) options['signal'] = aborting.signal
  const wait = actor.asks(`lock:${op.name}`, op.name, alone ? 0 : Number.POSITIVE_INFINITY, {
    exclusive: !shared,
    inTurn: true,
  })
  if (op.steal) for (const each of judge.actors) each.takenAt.push(process.local)
  let belief: Belief | undefined
  let stolen = false
  const callback = async (lock: unknown): Promise<string> => {
    wait.settled = process.local
    if (lock === null) return 'busy'
    const lease = actor.claimLease(op.name, shared ? 'shared' : 'exclusive', wait.asked)
    if (!lease) {
      judge.accuse('events', `${actor.label} ${op.name}: a callback without an event "acquired"`)
      return 'done'
    }
    const facts = {
      weight: shared ? 1 : ALL,
      capacity: ALL,
      token: lease.token,
      what: `#${op.id}`,
      ttlMs: DEFAULT_TTL_MS,
    }
    belief = judge.begins(wait, { ...facts, held: () => !lease.ended && process.world.now(true) < lease.deadline })
    await actor.sleep(op.hold)
    stolen = belief.revoked && process.local > belief.start
    judge.ends(belief)
    return 'done'
  }
  try {
    await actor.locks.request(op.name, options, callback)
    if (stolen && actor.undisturbed(wait.asked))
      judge.accuse('stolen and resolved', `${actor.label} ${op.name} #${op.id}`)
  } catch (error) {
    if (belief) {
      judge.ends(belief)
      if ((error as Error).name !== 'AbortError')
        judge.accuse('wrong error', `${actor.label} request: ${String(error)}`)
      return
    }
    // Stolen before its callback could begin.
    if ((error as Error).name === 'AbortError' && actor.takenAt.length > 0) {
      wait.settled = process.local
      return
    }
    // It is sent after what this instance requested before has been answered: it may wait for one call that fails, for one that is
    // answered slowly, and for its own.
    actor.refused(wait, error, { abortedAt: aborting?.abortedAt(), calls: 3 })
  }
}

export interface DistributedOperation extends Operation {
  style: 'acquire' | 'with'
  ttl: number
  wait: number
  hold: number
  /** Leave it to another operation of this instance to release, or to time. */
  keeps?: boolean
  extend?: number
}

/** The class of the seeds: one holder per instance, acquiring again extends. */
export async function distributed(actor: Actor, op: DistributedOperation): Promise<void> {
  const { process, judge } = actor
  const store = actor.store
  actor.distributed ??= new DistributedLock(store)
  const locks = actor.distributed
  const options = { timeoutSeconds: op.ttl / 1_000, blocking: op.wait > 0, blockingTimeoutSeconds: op.wait / 1_000 }
  // Acquiring again never shortens, so an earlier call may have made it last longer.
  const longest = Math.max(actor.longestTtl.get(op.name) ?? 0, op.ttl, op.extend ?? 0)
  actor.longestTtl.set(op.name, longest)
  try {
    if (op.style === 'with') {
      let pause = 0
      const work = async (): Promise<void> => {
        // Not the pause that has just ended.
        const began = process.local + 0.001
        await actor.sleep(op.hold)
        pause = process.longestPause(began)
      }
      await locks.withLock(op.name, work, options)
      // Nothing could renew it meanwhile, and nobody could see that the time had not passed.
      if (pause > 2 * (actor.longestTtl.get(op.name) ?? 0) + op.hold) {
        judge.accuse(
          'resolved without lock',
          `${actor.label} DistributedLock.withLock, after a pause of ${Math.round(pause)} ms`,
        )
      }
      return
    }
    const wait = actor.asks(`lock:${op.name}`, op.name, op.wait, { exclusive: true, ttlMs: op.ttl })
    const { acquired, lock } = await locks.acquire(op.name, options)
    wait.settled = process.local
    if (!acquired || !lock) return
    believe(actor, op, wait, lock.expiresAt)
    await actor.sleep(op.hold)
    if (op.extend !== undefined) {
      shorten(actor, op.name, op.extend)
      await locks.extend(op.name, op.extend / 1_000)
    }
    if (op.keeps) return
    disbelieve(actor, op.name)
    await locks.release(op.name)
  } catch (error) {
    const { code, message = '' } = error as { code?: string; message?: string }
    const known = code === 'LOCK_LOST' || code === 'STORE_UNAVAILABLE' || message.startsWith('Failed to acquire lock')
    if (!known) judge.accuse('wrong error', `${actor.label} DistributedLock: ${String(error)}`)
  }
}

/** One belief per instance and name, until the deadline that was reported last. */
function believe(actor: Actor, op: DistributedOperation, wait: Wait, expiresAt: Date): void {
  const { process, judge } = actor
  const deadline = process.clockAt(process.local) + expiresAt.getTime() - actor.sim.probe(() => process.world.date())
  const before = actor.beliefs.get(op.name)
  // Another operation of this instance released it in this very moment.
  if (before?.releasedAt === process.local) return
  if (before && !before.belief.over) {
    before.deadline = deadline
    return
  }
  const now = { deadline, releasedAt: undefined } as {
    deadline: number
    releasedAt: number | undefined
    belief: Belief
  }
  const held = (): boolean => process.world.now(true) < now.deadline
  now.belief = judge.begins(wait, { weight: ALL, capacity: ALL, token: undefined, held, what: `#${op.id}` })
  actor.beliefs.set(op.name, now)
}

/** From the moment of asking, a shorter time counts. */
function shorten(actor: Actor, name: string, ttlMs: number): void {
  const before = actor.beliefs.get(name)
  // The holder stops trusting it earlier than the store does, by what clocks may differ; on Redlock both the store and the core subtract that.
  const margin = (ttlMs * 0.01 + 2) * (actor.shape.redlock ? 2 : 1)
  const until = actor.process.clockAt(actor.process.local) + ttlMs - margin
  if (before) before.deadline = Math.min(before.deadline, until)
}

function disbelieve(actor: Actor, name: string): void {
  const before = actor.beliefs.get(name)
  if (!before) return
  before.releasedAt = actor.process.local
  actor.judge.ends(before.belief)
}
