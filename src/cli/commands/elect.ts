import { randomUUID } from 'node:crypto'
import { basename } from 'node:path'
import { LockLostError, StoreUnavailableError } from '../../errors.js'
import type { Locks } from '../../locks.js'
import type { Election } from '../../primitives/election/election.js'
import { type Leadership, lockOfTerm } from '../../primitives/election/term.js'
import type { Command, Input, Program } from '../command.js'
import { type CommandPlan, commandPlanFrom, killAfterOption, runUnder, ttlOption } from '../command-under-lock.js'
import { exitCodeOfSignal } from '../exit-codes.js'
import { say } from '../output.js'
import { Signals } from '../signals.js'
import { storeOption, withStore } from '../stores.js'
import { NotStartedError } from '../supervision.js'
import { WatchdogClient } from '../watchdog-client.js'

export const elect: Command = {
  usage: '<name> [options] -- command [args…]',
  runsCommand: true,
  summary: 'runs a command only while this process is the leader',
  about: `
Waits until it is elected, then starts the command. If the leadership is lost, the command is stopped before another can
lead, and the next term is campaigned for. When the command ends by itself, it resigns and exits with the command's
status; likewise after SIGTERM, SIGINT or SIGQUIT, with 70 if the term was lost meanwhile. Signals are passed on.
The command sees LEASEHOLD_TERM, which grows with every term (also as LEASEHOLD_FENCING_TOKEN), LEASEHOLD_NAME and
LEASEHOLD_HOLDER. Otherwise it exits as "run" does: 69 the store is unavailable at the start, 64 bad usage, 126 the
command cannot be executed, 127 it is not there. An outage later on is waited out.`,
  options: { ttl: ttlOption, 'kill-after': killAfterOption, ...storeOption },
  examples: [
    ['leasehold elect --store redis://db:6379 scheduler -- ./scheduler', 'one scheduler, on whichever machine leads'],
    ['leasehold elect --ttl 10s --store postgres://db/app queue -- ./worker', 'another takes over 10s after a crash'],
    ['leasehold ls --kind election', 'who leads what'],
  ],
  run: electCommand,
}

interface Candidate {
  name: string
  plan: CommandPlan
  locks: Locks
  signals: Signals
  watchdogFile: string
}

async function electCommand(input: Input, program: Program): Promise<number> {
  const plan = commandPlanFrom(input)
  const name = input.one('name')
  const signals = new Signals()
  try {
    return await withStore(input, async (locks) => {
      // Only the name of the program: its arguments may be secrets, and others can read the store.
      const value = { command: basename(plan.command[0] as string) }
      const election = locks.election(name, { ttl: plan.ttlMs, value })
      // A campaign waits through an outage. At the start that would hide a wrong address for ever.
      await election.leader()
      return campaign(election, { name, plan, locks, signals, watchdogFile: program.watchdogFile })
    })
  } catch (error) {
    if (signals.caught) return exitCodeOfSignal(signals.caught)
    if (!(error instanceof NotStartedError)) throw error
    say(error.message)
    return error.exitCode
  }
}

/** Leads term after term, until the command ends by itself or a signal ends the wait. Resolves with the exit status. */
async function campaign(election: Election, candidate: Candidate): Promise<number> {
  const { signals } = candidate
  const over = new AbortController()
  signals.ended.addEventListener('abort', () => over.abort())
  // A signal that came while the store was opened aborted before there was a listener: the candidate would wait for ever.
  if (signals.ended.aborted) over.abort()
  let status: number | undefined
  const work = async (leadership: Leadership): Promise<void> => {
    status = await leadOneTerm(leadership, candidate)
    if (status !== undefined) over.abort()
  }
  await election.run(work, { signal: over.signal })
  return status ?? exitCodeOfSignal(signals.caught as NodeJS.Signals)
}

/** Undefined: the term was lost, and the next one can be campaigned for. */
async function leadOneTerm(leadership: Leadership, candidate: Candidate): Promise<number | undefined> {
  const { name, locks, signals, watchdogFile } = candidate
  const term = String(leadership.term)
  const again = (why: string): undefined => say(`${why}; campaigning again`) as undefined
  // A tag per term: a process that an earlier term left behind must not be taken for one of this term.
  const plan = { ...candidate.plan, tag: randomUUID(), env: { LEASEHOLD_TERM: term } }
  // Started only now, unlike that of "run": a candidate may wait for weeks.
  const watchdog = new WatchdogClient({ file: watchdogFile, killAfterMs: plan.killAfterMs, tag: plan.tag })
  say(`leading ${JSON.stringify(name)}, term ${term}`)
  try {
    const { status, stopped } = await runUnder(lockOfTerm(leadership), locks, plan, { watchdog, signals })
    if (stopped === undefined) return status
    // The signal went to a command that was being killed: nobody else will act on it.
    if (!signals.askedToEnd) return again(stopped)
    say(stopped)
    return status
  } catch (error) {
    if (signals.caught) return exitCodeOfSignal(signals.caught)
    // Lost before the command was started.
    if (!(error instanceof LockLostError || error instanceof StoreUnavailableError)) throw error
    return again(error.message)
  } finally {
    await watchdog.dismiss()
    await watchdog.exited()
  }
}
