/**
 * A command that runs under a lock, for `run` and `elect`: it is dead before another process can hold the lock.
 *
 * @module
 */
import { randomUUID } from 'node:crypto'
import { isatty } from 'node:tty'
import type { Lock } from '../core/lock.js'
import { StoreUnavailableError } from '../errors.js'
import type { Locks } from '../locks.js'
import { type Input, type OptionSpec, UsageError } from './command.js'
import { exitCode } from './exit-codes.js'
import { say } from './output.js'
import type { Signals } from './signals.js'
import { Supervision } from './supervision.js'
import type { WatchdogClient } from './watchdog-client.js'
import { deadlineIn } from './watchdog-protocol.js'

/**
 * The time between the last SIGKILL and the end of the lease, as a share of the ttl: the watchdog and the processes that it
 * kills have to get a processor first. With 50 ms, 2 of 95 frozen holders on a machine with a load of 30 died too late.
 */
const KILL_MARGIN_SHARE = 0.1
/** Bounds of that time in milliseconds. The upper one keeps a long ttl from shortening the command's time for nothing. */
const MIN_KILL_MARGIN_MS = 100
const MAX_KILL_MARGIN_MS = 1_000

/**
 * The shortest --ttl, in milliseconds: a watchdog on a busy machine may be this late, and a shorter lease would leave
 * it no time.
 */
const MIN_TTL_MS = 1_000

/** The most that a command gets between SIGTERM and SIGKILL without --kill-after, in milliseconds. */
const DEFAULT_KILL_AFTER_MS = 5_000

export const ttlOption: OptionSpec = {
  value: 'DURATION',
  help: 'if this machine dies, others wait at most so long (default 30s, at least 1s)',
}
export const killAfterOption: OptionSpec = {
  value: 'DURATION',
  help: 'from SIGTERM to SIGKILL (default 5s, but at most a quarter of the ttl)',
}

/** What to run, and how long it may take to end. */
export interface CommandPlan {
  command: readonly string[]
  /** Text in the environment of the command, by which its processes are found. */
  tag: string
  ttlMs: number
  killAfterMs: number
  /** Added to the environment, beside the facts of the lock. */
  env?: Record<string, string>
}

export function commandPlanFrom(input: Input): CommandPlan {
  if (process.platform === 'win32') throw new UsageError('this needs process groups, which Windows does not have')
  if (!input.rest?.length) throw new UsageError('the command is missing; it comes after "--"')
  const ttlMs = input.duration('ttl', { min: MIN_TTL_MS }) ?? 30_000
  const killAfterMs = input.duration('kill-after', { max: ttlMs / 3 }) ?? Math.min(DEFAULT_KILL_AFTER_MS, ttlMs / 4)
  return { command: input.rest, tag: randomUUID(), ttlMs, killAfterMs }
}

/** What watches the command, and passes signals on to it. */
export interface CommandHelpers {
  watchdog: WatchdogClient
  signals: Signals
}

/** How a command ended. */
export interface CommandEnd {
  /** Its own exit status, or 70 if it had to be stopped. */
  status: number
  /** Why it did not run under the lock from beginning to end; undefined if it did. */
  stopped: string | undefined
}

/** Resolves when the command and all that it left behind have ended. The lock has been released by then, unless it was lost. */
export async function runUnder(
  lock: Lock,
  locks: Locks,
  plan: CommandPlan,
  { watchdog, signals }: CommandHelpers,
): Promise<CommandEnd> {
  // A lease that was handed off may have little time left: too little for a watchdog that has to stop the command in time.
  if (lock.remainingMs < (plan.ttlMs * 2) / 3) await lock.extend(plan.ttlMs)
  const killMarginMs = Math.min(Math.max(plan.ttlMs * KILL_MARGIN_SHARE, MIN_KILL_MARGIN_MS), MAX_KILL_MARGIN_MS)
  const arm = (): void => watchdog.arm(deadlineIn(() => lock.remainingMs - killMarginMs))
  const renewed = ({ holder }: { holder: string }): void => {
    if (holder === lock.holder) arm()
  }
  locks.on('renewed', renewed)
  arm()
  try {
    return await superviseUnder(lock, plan, { watchdog, signals })
  } finally {
    locks.off('renewed', renewed)
    signals.stopForwarding()
  }
}

async function superviseUnder(
  lock: Lock,
  plan: CommandPlan,
  { watchdog, signals }: CommandHelpers,
): Promise<CommandEnd> {
  // A busy machine takes seconds to start a watchdog: a signal ends the run meanwhile.
  await Promise.race([watchdog.armed, signals.rejected])
  signals.ended.throwIfAborted()
  lock.assertHeld()
  if (watchdog.stopped)
    throw new StoreUnavailableError(`${JSON.stringify(lock.name)} could not be renewed before the command started`)
  const ownSession = !isatty(0)
  watchdog.expect(ownSession)
  const command = await Supervision.start({ ...plan, ownSession, env: { ...environmentOf(lock), ...plan.env } })
  watchdog.watch(command.processes.identity)
  watchdog.onUnprotected = () => command.stop('its watchdog process died, and no other could be started')
  signals.forwardTo(command.processes, () => lock.isHeld)
  const { signal } = lock
  const lost = (): void => command.kill(messageOf(signal))
  if (signal.aborted) lost()
  else signal.addEventListener('abort', lost)
  const status = await command.ended
  signal.removeEventListener('abort', lost)
  await watchdog.dismiss()
  const released = await lock.release()
  const stopped = reasonOfStop(lock.name, signal, command, watchdog)
  if (!released && stopped === undefined) {
    say(`${JSON.stringify(lock.name)} could not be released, and is held until its ttl has passed`)
  }
  return { status: stopped === undefined ? status : exitCode.lost, stopped }
}

/** Why the command did not run under the lock from beginning to end; undefined if it did. */
function reasonOfStop(
  name: string,
  signal: AbortSignal,
  command: Supervision,
  watchdog: WatchdogClient,
): string | undefined {
  if (command.stopped) return `${command.stopped}; the command was killed`
  if (watchdog.stopped) return `${JSON.stringify(name)} could not be renewed in time; the command was stopped`
  // The loss was noticed only by the release.
  if (signal.aborted) return `${messageOf(signal)}; the command may have gone on without it`
  return undefined
}

function messageOf(signal: AbortSignal): string {
  return signal.reason instanceof Error ? signal.reason.message : String(signal.reason)
}

function environmentOf(lock: Lock): Record<string, string> {
  return {
    LEASEHOLD_NAME: lock.name,
    LEASEHOLD_HOLDER: lock.holder,
    LEASEHOLD_FENCING_TOKEN: String(lock.fencingToken),
  }
}
