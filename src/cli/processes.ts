/**
 * Which processes belong to a command, and how to reach all of them. Only Node's own modules: the watchdog loads this too.
 *
 * @module
 */
import { spawnSync } from 'node:child_process'
import { readFileSync, readdirSync } from 'node:fs'

/** A command that was started under a lock, with everything it started in turn. */
export interface Job {
  /** The process that was started first; 0 while that is not known yet. */
  pid: number
  /** When it was started, so that a later process with the same number is left alone. */
  startedAt: string | undefined
  /** Whether it leads a process group of its own. If not, it shares the group of a terminal with `leasehold run`. */
  ownGroup: boolean
  session: number
  /** Stands in the environment of the command and of whatever inherits it. */
  tag: string
}

interface ProcessFacts {
  pid: number
  parent: number
  group: number
  session: number
  /** Dead, but not yet collected by its parent: cannot do anything any more. */
  zombie: boolean
  startedAt: string | undefined
}

/** The variable that carries the tags, one for each `leasehold run` around the process. */
export const TAGS = 'LEASEHOLD_TAGS'

/** The tags around us and one more: a command that itself uses `leasehold run` must still be found by the outer one. */
export function withTag(tag: string): string {
  return process.env[TAGS] ? `${process.env[TAGS]} ${tag}` : tag
}

export function jobOf(pid: number, ownGroup: boolean, tag: string): Job {
  const facts = factsOf(pid)
  return { pid, ownGroup, tag, startedAt: facts?.startedAt, session: facts?.session ?? UNKNOWN_SESSION }
}

/** Passes a signal on to the command's group; in a terminal, to what it started there. */
export function signalJob(job: Job, signal: NodeJS.Signals): void {
  if (job.ownGroup) send(-job.pid, signal)
  else for (const { pid } of groupOf(job)) send(pid, signal)
}

/** Whether anything of the group still runs. What has left the group was meant to stay. */
export function groupIsAlive(job: Job): boolean {
  // The usual case needs no look at all processes: nobody is left.
  if (job.ownGroup && !send(-job.pid, 0)) return false
  return groupOf(job).length > 0
}

/** Whether anything of it still runs, in the group or not. */
export function jobIsAlive(job: Job): boolean {
  return membersOf(job).length > 0
}

/**
 * SIGKILL to all of it, also to what has left the group: the lock is about to be another's. Returns true once nothing
 * of it is alive. To be called again until then: what is being forked just now is found the next time.
 */
export function killJob(job: Job): boolean {
  if (job.ownGroup) send(-job.pid, 'SIGKILL')
  const alive = membersOf(job)
  for (const { pid } of alive) send(pid, 'SIGKILL')
  return alive.length === 0
}

/** Whether what is typed in our terminal, such as ^C, goes to our own process group. */
export function inForeground(): boolean {
  const fields = readStat(process.pid)
  return fields === undefined || fields[2] === fields[5]
}

function groupOf(job: Job): ProcessFacts[] {
  if (!job.ownGroup) return membersOf(job).filter((one) => job.pid === 0 || one.session === job.session)
  return listProcesses().filter((one) => one.group === job.pid && !one.zombie)
}

function membersOf(job: Job): ProcessFacts[] {
  const all = listProcesses()
  const members = new Map<number, ProcessFacts>()
  for (const one of all) {
    const first = one.pid === job.pid && one.startedAt === job.startedAt
    if (first || (job.ownGroup && one.group === job.pid) || carries(one.pid, job.tag)) members.set(one.pid, one)
  }
  // Children of members are members, whatever they did to their environment.
  for (let known = 0; known < members.size; ) {
    known = members.size
    for (const one of all) if (members.has(one.parent)) members.set(one.pid, one)
  }
  members.delete(process.pid)
  return [...members.values()].filter((one) => !one.zombie)
}

/** In its environment as it was at exec. Not readable for processes of other users, which we could not signal either. */
function carries(pid: number, tag: string): boolean {
  try {
    return readFileSync(`/proc/${pid}/environ`).includes(tag)
  } catch {
    return false
  }
}

/** False if there is nobody to get it. */
function send(pid: number, signal: NodeJS.Signals | 0): boolean {
  try {
    process.kill(pid, signal)
    return true
  } catch (error) {
    // EPERM: there is somebody, who has changed its user and takes nothing from us.
    return (error as NodeJS.ErrnoException).code === 'EPERM'
  }
}

const UNKNOWN_SESSION = -1

function listProcesses(): ProcessFacts[] {
  const here = factsOf(process.pid)
  if (!here) return listWithPs()
  const pids = readdirSync('/proc').map(Number)
  return pids.map((pid) => (pid > 0 ? factsOf(pid) : undefined)).filter((facts) => facts !== undefined)
}

function factsOf(pid: number): ProcessFacts | undefined {
  const fields = readStat(pid)
  if (!fields) return undefined
  const [state, parent, group, session] = fields
  return {
    pid,
    parent: Number(parent),
    group: Number(group),
    session: Number(session),
    zombie: state === 'Z' || state === 'X',
    startedAt: fields[19],
  }
}

/** What follows the name: state, parent, group, session, terminal, its foreground group, …; the twentieth is the start. */
function readStat(pid: number): string[] | undefined {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'latin1')
    // The name stands in brackets, and may itself contain brackets and spaces.
    return text.slice(text.lastIndexOf(')') + 2).split(' ')
  } catch {
    return undefined
  }
}

/** Where there is no /proc (macOS, BSD). Knows neither tags nor sessions nor starts, only groups and families. */
function listWithPs(): ProcessFacts[] {
  const { stdout: text } = spawnSync('ps', ['-A', '-o', 'pid=,ppid=,pgid=,stat='], { encoding: 'utf8' })
  // Without ps, groups are still signalled; only what has left them is not found.
  if (!text) return []
  return text
    .trim()
    .split('\n')
    .map((line) => {
      const [pid, parent, group, state = ''] = line.trim().split(/\s+/)
      const numbers = { pid: Number(pid), parent: Number(parent), group: Number(group), session: UNKNOWN_SESSION }
      return { ...numbers, zombie: state.startsWith('Z'), startedAt: undefined }
    })
}
