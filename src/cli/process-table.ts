/**
 * The processes of this machine, as the kernel lists them. Only Node's own modules: the watchdog loads this too.
 *
 * @module
 */
import { spawnSync } from 'node:child_process'
import { readFileSync, readdirSync } from 'node:fs'

export interface ProcessFacts {
  pid: number
  parent: number
  group: number
  session: number
  /** Dead, but not yet collected by its parent: it does no work any more. */
  zombie: boolean
  startedAt: string | undefined
}

/** The session of every process on systems that do not report sessions (no /proc). No real session has this number. */
export const UNKNOWN_SESSION = -1

export function listProcesses(): ProcessFacts[] {
  const here = factsOf(process.pid)
  if (!here) return listWithPs()
  const pids = readdirSync('/proc').map(Number)
  return pids.map((pid) => (pid > 0 ? factsOf(pid) : undefined)).filter((facts) => facts !== undefined)
}

export function factsOf(pid: number): ProcessFacts | undefined {
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

/** The children of this process that are alive or not yet collected. */
export function childrenOf(parent: number): number[] {
  try {
    // The children that the main thread started: one file to read, where a listing of all processes reads one file for
    // each.
    return readFileSync(`/proc/${parent}/task/${parent}/children`, 'latin1').split(' ').map(Number).filter(Boolean)
  } catch {
    return listProcesses()
      .filter((one) => one.parent === parent)
      .map(({ pid }) => pid)
  }
}

/** Whether signals from the keyboard of our terminal, such as ^C, go to our own process group. */
export function inForeground(): boolean {
  const fields = readStat(process.pid)
  return fields === undefined || fields[2] === fields[5]
}

/** Whether the process had this text in its environment at exec. False if its environment may not be read. */
export function hasInEnvironment(pid: number, text: string): boolean {
  try {
    return readFileSync(`/proc/${pid}/environ`).includes(text)
  } catch {
    return false
  }
}

/**
 * The fields after the name: state, parent, group, session, terminal, its foreground group, …; the twentieth is the
 * start.
 */
function readStat(pid: number): string[] | undefined {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'latin1')
    // The name is in brackets, and may itself contain brackets and spaces: split after the last one.
    return text.slice(text.lastIndexOf(')') + 2).split(' ')
  } catch {
    return undefined
  }
}

/** For systems without /proc (macOS, BSD). `ps` reports neither tags nor sessions, only groups, parents and start times. */
function listWithPs(): ProcessFacts[] {
  const { stdout: text } = spawnSync('ps', ['-A', '-o', 'pid=,ppid=,pgid=,stat=,lstart='], { encoding: 'utf8' })
  // Without ps, groups are still signalled; only processes that left them are not found.
  if (!text) return []
  return text
    .trim()
    .split('\n')
    .map((line) => {
      const [pid, parent, group, state = '', ...start] = line.trim().split(/\s+/)
      const numbers = { pid: Number(pid), parent: Number(parent), group: Number(group), session: UNKNOWN_SESSION }
      return { ...numbers, zombie: state.startsWith('Z'), startedAt: start.join(' ') }
    })
}
