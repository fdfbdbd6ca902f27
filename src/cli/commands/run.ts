import { randomUUID } from 'node:crypto'
import { basename } from 'node:path'
import type { Lock } from '../../core/lock.js'
import { LockTimeoutError, StoreUnavailableError } from '../../errors.js'
import type { Locks } from '../../locks.js'
import { type Command, type Input, type Program, UsageError } from '../command.js'
import { exitCode, exitCodeOfSignal } from '../exit-codes.js'
import { deadlineIn } from '../watchdog-protocol.js'
import { WatchdogClient } from '../watchdog-client.js'
import { say } from '../output.js'
import { Signals } from '../signals.js'
import { storeOption, withStore } from '../stores.js'
import { NotStartedError, Supervision } from '../supervision.js'

/** What was asked for, checked. */
interface Plan {
  name: string
  command: readonly string[]
  /** Stands in the environment of the command. */
  tag: string
  ttlMs: number
  wait: number | 'forever'
  shared: boolean
  permits: number | undefined
  killAfterMs: number
  /** The exit status if the lock stays busy. */
  busyStatus: number
}

/**
 * From the last SIGKILL to the moment from which the lock cannot be trusted: a tenth of the ttl. The watchdog and those it
 * kills have to get a processor first. With 50 ms, 2 of 95 frozen holders on a machine with a load of 30 died too late.
 */
const DYING_SHARE = 0.1
const LEAST_DYING_MS = 100
const MOST_DYING_MS = 1_000

/** A watchdog that shares its machine with others may come this much too late; a shorter lease would leave it no time. */
const SHORTEST_TTL = 1_000

/** The most that a command gets between SIGTERM and SIGKILL unless asked for. */
const USUAL_KILL_AFTER = 5_000

const LARGEST_PERMITS = 1_000_000

export const run: Command = {
  usage: '<name> [options] -- command [args…]',
  summary: 'runs a command while holding a lock',
  about: `
The command has its own exit status. Otherwise: 75 the lock stayed busy, 69 the store is unavailable,
64 bad usage, 70 the lock was lost and the command was killed, 126 the command cannot be executed, 127 it is not there.
It sees LEASEHOLD_NAME, LEASEHOLD_HOLDER and LEASEHOLD_FENCING_TOKEN. Signals are passed on.`,
  options: {
    ttl: { value: 'DURATION', help: 'if this machine dies, others wait at most so long (default 30s, at least 1s)' },
    wait: { value: 'DURATION|forever', help: 'give up after so long; 0: at once (default 10s)' },
    shared: { help: 'beside others that share it, but never beside one that does not' },
    permits: { value: 'N', help: 'at most N at a time, instead of one' },
    'busy-status': {
      value: 'N',
      help: "exit with N instead of 75 if the lock stays busy, to tell it from the command's own",
    },
    'kill-after': { value: 'DURATION', help: 'from SIGTERM to SIGKILL (default 5s, but at most a quarter of the ttl)' },
    ...storeOption,
  },
  examples: [
    ['leasehold run backup -- ./backup.sh', 'never two backups of this user at once on this machine'],
    ['leasehold run --wait 0 --busy-status 0 report -- ./report', 'from cron: skip it if the last one is still at it'],
    [
      'leasehold run --store redis://db:6379 deploy -- make deploy',
      'one deployment at a time, for all users and machines',
    ],
    ['leasehold run --store-file ~/.locks-url deploy -- make deploy', 'without a password in the process list'],
    ['leasehold run --permits 3 thumbnails -- ./resize big.png', 'at most three at once'],
  ],
  run: runCommand,
}

async function runCommand(input: Input, program: Program): Promise<number> {
  const plan = planFrom(input)
  const signals = new Signals()
  // Before anything else: it takes as long to start as we took.
  const watchdog = new WatchdogClient({ file: program.watchdogFile, killAfterMs: plan.killAfterMs, tag: plan.tag })
  try {
    return await withStore(input, async (locks) => {
      const lock = await acquire(locks, plan, signals.ended)
      try {
        return await runUnder(lock, locks, plan, { watchdog, signals })
      } finally {
        await lock.release()
      }
    })
  } catch (error) {
    if (signals.caught) return exitCodeOfSignal(signals.caught)
    if (error instanceof NotStartedError || error instanceof LockTimeoutError) {
      say(error.message)
      return error instanceof NotStartedError ? error.exitCode : plan.busyStatus
    }
    throw error
  } finally {
    await watchdog.dismiss()
  }
}

function planFrom(input: Input): Plan {
  if (process.platform === 'win32') throw new UsageError('run needs process groups, which Windows does not have')
  if (!input.rest?.length) throw new UsageError('the command is missing; it comes after "--"')
  const name = input.one('name')
  const permits = input.count('permits', { most: LARGEST_PERMITS })
  if (permits !== undefined && input.has('shared')) throw new UsageError('--shared and --permits exclude each other')
  const ttlMs = input.duration('ttl', { min: SHORTEST_TTL }) ?? 30_000
  const longest = ttlMs / 3
  const killAfterMs = input.duration('kill-after', { max: longest }) ?? Math.min(USUAL_KILL_AFTER, ttlMs / 4)
  const wait = input.value('wait') === 'forever' ? 'forever' : (input.duration('wait', { or: 'forever' }) ?? 10_000)
  return {
    name,
    command: input.rest,
    tag: randomUUID(),
    ttlMs,
    wait,
    shared: input.has('shared'),
    permits,
    killAfterMs,
    busyStatus: input.count('busy-status', { least: 0, most: 255 }) ?? exitCode.busy,
  }
}

async function acquire(locks: Locks, plan: Plan, signal: AbortSignal): Promise<Lock> {
  const { name, ttlMs: ttl, wait, permits } = plan
  // Its arguments may be secrets; the store may be everybody's.
  const metadata = { command: basename(plan.command[0] as string) }
  const options = { ttl, wait, signal, metadata }
  if (permits !== undefined) return locks.semaphore(name, permits).acquire(options)
  return locks.acquire(name, { ...options, mode: plan.shared ? 'shared' : 'exclusive' })
}

interface Helpers {
  watchdog: WatchdogClient
  signals: Signals
}

/** The command's exit status, or 70 if we had to stop it. The lock is still held when this resolves, unless it was lost. */
async function runUnder(lock: Lock, locks: Locks, plan: Plan, { watchdog, signals }: Helpers): Promise<number> {
  // Handed over by another, it may be ours for a short while only: too short for a watchdog that has to stop things in time.
  if (lock.remainingMs < (plan.ttlMs * 2) / 3) await lock.extend(plan.ttlMs)
  const dyingMs = Math.min(Math.max(plan.ttlMs * DYING_SHARE, LEAST_DYING_MS), MOST_DYING_MS)
  const arm = (): void => watchdog.arm(deadlineIn(() => lock.remainingMs - dyingMs))
  locks.on('renewed', ({ holder }) => {
    if (holder === lock.holder) arm()
  })
  arm()
  // A machine with too much to do takes seconds to start a watchdog: whoever wants to end us meanwhile is heard.
  await Promise.race([watchdog.armed, signals.rejected])
  signals.ended.throwIfAborted()
  lock.assertHeld()
  if (watchdog.stopped)
    throw new StoreUnavailableError(`${JSON.stringify(lock.name)} could not be renewed before the command started`)
  const command = await Supervision.start({ ...plan, env: environmentOf(lock) })
  watchdog.watch(command.job)
  watchdog.onUnprotected = () => command.stop('its watchdog process died, and no other could be started')
  signals.passOnTo(command.job, () => lock.isHeld)
  const { signal } = lock
  const lost = (): void => command.kill(messageOf(signal))
  if (signal.aborted) lost()
  else signal.addEventListener('abort', lost)
  const status = await command.ended
  signal.removeEventListener('abort', lost)
  await watchdog.dismiss()
  const released = await lock.release()
  const trouble = troubleOf(lock.name, signal, command, watchdog)
  if (trouble) say(trouble)
  else if (!released) say(`${JSON.stringify(lock.name)} could not be released, and is held until its ttl has passed`)
  return trouble ? exitCode.lost : status
}

/** Why the command cannot be said to have run under the lock from beginning to end; undefined if it has. */
function troubleOf(
  name: string,
  signal: AbortSignal,
  command: Supervision,
  watchdog: WatchdogClient,
): string | undefined {
  if (command.stopped) return `${command.stopped}; the command was killed`
  if (watchdog.stopped) return `${JSON.stringify(name)} could not be renewed in time; the command was stopped`
  // Nobody noticed before it was to be released.
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
