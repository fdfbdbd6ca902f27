import { basename } from 'node:path'
import type { Lock } from '../../core/lock.js'
import { LockTimeoutError } from '../../errors.js'
import type { Locks } from '../../locks.js'
import { type Command, type Input, type Program, UsageError } from '../command.js'
import { type CommandPlan, commandPlanFrom, killAfterOption, runUnder, ttlOption } from '../command-under-lock.js'
import { exitCode, exitCodeOfSignal } from '../exit-codes.js'
import { WatchdogClient } from '../watchdog-client.js'
import { say } from '../output.js'
import { Signals } from '../signals.js'
import { storeOption, withStore } from '../stores.js'
import { NotStartedError } from '../supervision.js'

/** The checked options of one `leasehold run`. */
interface RunPlan extends CommandPlan {
  name: string
  wait: number | 'forever'
  shared: boolean
  permits: number | undefined
  /** The exit status if the lock stays busy. */
  busyStatus: number
}

/** The largest --permits, so that a typing error is refused. */
const MAX_PERMITS = 1_000_000

export const run: Command = {
  usage: '<name> [options] -- command [args…]',
  runsCommand: true,
  summary: 'runs a command while holding a lock',
  about: `
The command has its own exit status. Otherwise: 75 the lock stayed busy, 69 the store is unavailable,
64 bad usage, 70 the lock was lost and the command was killed, 126 the command cannot be executed, 127 it is not there.
It sees LEASEHOLD_NAME, LEASEHOLD_HOLDER and LEASEHOLD_FENCING_TOKEN. Signals are passed on.`,
  options: {
    ttl: ttlOption,
    wait: { value: 'DURATION|forever', help: 'give up after so long; 0: at once (default 10s)' },
    shared: { help: 'beside others that share it, but never beside one that does not' },
    permits: { value: 'N', help: 'at most N at a time, instead of one' },
    'busy-status': {
      value: 'N',
      help: "exit with N instead of 75 if the lock stays busy, to tell it from the command's own",
    },
    'kill-after': killAfterOption,
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
  // Started first: a watchdog takes as long to start as this process did, and gets ready while the lock is acquired.
  const watchdog = new WatchdogClient({ file: program.watchdogFile, killAfterMs: plan.killAfterMs, tag: plan.tag })
  try {
    return await withStore(input, async (locks) => {
      const lock = await acquire(locks, plan, signals.ended)
      try {
        const { status, stopped } = await runUnder(lock, locks, plan, { watchdog, signals })
        if (stopped !== undefined) say(stopped)
        return status
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
    await watchdog.exited()
  }
}

function planFrom(input: Input): RunPlan {
  const command = commandPlanFrom(input)
  const name = input.one('name')
  const permits = input.count('permits', { most: MAX_PERMITS })
  if (permits !== undefined && input.has('shared')) throw new UsageError('--shared and --permits exclude each other')
  const wait = input.value('wait') === 'forever' ? 'forever' : (input.duration('wait', { or: 'forever' }) ?? 10_000)
  return {
    ...command,
    name,
    wait,
    shared: input.has('shared'),
    permits,
    busyStatus: input.count('busy-status', { least: 0, most: 255 }) ?? exitCode.busy,
  }
}

async function acquire(locks: Locks, plan: RunPlan, signal: AbortSignal): Promise<Lock> {
  const { name, ttlMs: ttl, wait, permits } = plan
  // Only the name of the program: its arguments may be secrets, and others can read the store.
  const metadata = { command: basename(plan.command[0] as string) }
  const options = { ttl, wait, signal, metadata }
  if (permits !== undefined) return locks.semaphore(name, permits).acquire(options)
  return locks.acquire(name, { ...options, mode: plan.shared ? 'shared' : 'exclusive' })
}
