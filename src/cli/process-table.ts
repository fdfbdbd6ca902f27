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
  /** Dead, but not yet collected by its parent: cannot do anything any more. */
  zombie: boolean
  startedAt: string | undefined
}

/** Where the system does not tell sessions (no /proc). No process has this one. */
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

/** Whether what is typed in our terminal, such as ^C, goes to our own process group. */
export function inForeground(): boolean {
  const fields = readStat(process.pid)
  return fields === undefined || fields[2] === fields[5]
}

/** Whether this text stands in its environment as it was at exec. False for processes whose environment we may not read. */
export function hasInEnvironment(pid: number, text: string): boolean {
  try {
    return readFileSync(`/proc/${pid}/environ`).includes(text)
  } catch {
    return false
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
