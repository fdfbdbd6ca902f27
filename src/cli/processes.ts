/**
 * Which processes belong to a command, and how to reach all of them. Only Node's own modules: the watchdog loads this too.
 *
 * @module
 */
import { type ProcessFacts, UNKNOWN_SESSION, factsOf, hasInEnvironment, listProcesses } from './process-table.js'

/** A command that was started under a lock, with everything it started in turn. */
export interface Job {
  /** The process that was started first; 0 while that is not known yet. */
  pid: number
  /** When it was started, so that a later process with the same number is left alone. */
  startedAt: string | undefined
  /** Whether it leads a session of its own. If not, it shares the session of a terminal with `leasehold run`. */
  ownSession: boolean
  session: number
  /** Stands in the environment of the command and of whatever inherits it. */
  tag: string
}

/** The variable that carries the tags, one for each `leasehold run` around the process. */
export const TAGS = 'LEASEHOLD_TAGS'

/** The tags around us and one more: a command that itself uses `leasehold run` must still be found by the outer one. */
export function withTag(tag: string): string {
  return process.env[TAGS] ? `${process.env[TAGS]} ${tag}` : tag
}

export function jobOf(pid: number, ownSession: boolean, tag: string): Job {
  const facts = factsOf(pid)
  return { pid, ownSession, tag, startedAt: facts?.startedAt, session: facts?.session ?? UNKNOWN_SESSION }
}

/**
 * Passes a signal on as a shell's `kill %1` would: to the group of the command. A process that put its children into
 * another group, such as `timeout`, passes it on itself, and they would get it twice. In a terminal, to all it started there.
 */
export function signalGroup(job: Job, signal: NodeJS.Signals): void {
  if (job.ownSession) send(-job.pid, signal)
  else signalSession(job, signal)
}

/** To everything the command started in its session, in whatever process group. */
export function signalSession(job: Job, signal: NodeJS.Signals): void {
  signalAll(job, sessionMembers(job), signal)
}

/** Asks everything in the session to end. */
export function terminateSession(job: Job): void {
  signalSession(job, 'SIGTERM')
  // A process that was stopped hears SIGTERM only when it goes on.
  signalSession(job, 'SIGCONT')
}

/** Whether anything of it still runs in its session. What has left the session was meant to stay. */
export function sessionIsAlive(job: Job): boolean {
  return twice(() => sessionMembers(job)).length > 0
}

/** Whether anything of it still runs, in the session or not. */
export function jobIsAlive(job: Job): boolean {
  return twice(() => membersOf(job)).length > 0
}

/**
 * SIGKILL to all of it, also to what has left the session: the lock is about to be another's. Returns true once nothing
 * of it is alive. To be called again until then: what is being forked just now is found the next time.
 */
export function killJob(job: Job): boolean {
  // The session first: reading the environment of every process takes time that the lock may not have.
  if (job.ownSession) signalAll(job, sessionMembers(job), 'SIGKILL')
  const alive = twice(() => membersOf(job))
  signalAll(job, alive, 'SIGKILL')
  return alive.length === 0
}

/** A process that forks and exits while /proc is being read hides its child once: nobody is gone before a second look. */
function twice(look: () => ProcessFacts[]): ProcessFacts[] {
  const first = look()
  return first.length > 0 ? first : look()
}

/** By group where the whole group belongs to the job: the kernel then reaches those that are being forked as well. */
function signalAll(job: Job, members: readonly ProcessFacts[], signal: NodeJS.Signals): void {
  const pids = new Set(members.map(({ pid }) => pid))
  const groups = new Set<number>()
  for (const { group, session } of members) {
    // Never -1, which means every process of the machine: in a container the group of a terminal is 1.
    if (group > 1 && ((job.ownSession && session === job.pid) || pids.has(group))) groups.add(group)
  }
  for (const group of groups) send(-group, signal)
  for (const { pid, group } of members) if (!groups.has(group)) send(pid, signal)
}

function sessionMembers(job: Job): ProcessFacts[] {
  if (!job.ownSession) return membersOf(job).filter((one) => job.pid === 0 || one.session === job.session)
  const all = listProcesses()
  return all.filter((one) => !one.zombie && inOwnSession(job, one, all))
}

/**
 * By session or group: the session covers groups that a shell with `set -m` or `timeout` made, the group covers systems
 * that do not tell sessions. The kernel gives neither number away again while anybody is in it.
 */
function inOwnSession(job: Job, one: ProcessFacts, all: readonly ProcessFacts[]): boolean {
  if (!job.ownSession || (one.session !== job.pid && one.group !== job.pid)) return false
  const leader = all.find(({ pid }) => pid === job.pid)
  return leader === undefined || leader.startedAt === job.startedAt
}

function membersOf(job: Job): ProcessFacts[] {
  const all = listProcesses()
  const members = new Map<number, ProcessFacts>()
  for (const one of all) {
    const first = one.pid === job.pid && one.startedAt === job.startedAt
    if (first || inOwnSession(job, one, all) || hasInEnvironment(one.pid, job.tag)) members.set(one.pid, one)
  }
  // Children of members are members, whatever they did to their environment.
  for (let known = 0; known < members.size; ) {
    known = members.size
    for (const one of all) if (members.has(one.parent)) members.set(one.pid, one)
  }
  members.delete(process.pid)
  return [...members.values()].filter((one) => !one.zombie)
}

/** A process that has changed its user takes nothing from us, and one that has gone needs nothing. */
function send(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal)
  } catch {
    // The next look tells whether it is still there.
  }
}
