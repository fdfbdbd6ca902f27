import { readFileSync } from 'node:fs'

/**
 * What one process believed, by the one clock all processes of a machine share (process.hrtime). Written as it
 * happens, so that a process that is killed has still said what it believed.
 */
export type Line =
  | { type: 'began'; id: string; pid: number; mode: 'exclusive' | 'shared'; token: string; at: number }
  /** At `at`, just before asking, and the answer was: held. */
  | { type: 'believed'; id: string; at: number }
  | { type: 'ended'; id: string; at: number }
  | { type: 'collision'; id: string; at: number; with: string }

/** One time in the critical section. */
export interface Section {
  id: string
  pid: number
  mode: 'exclusive' | 'shared'
  token: bigint
  /** From here on. Infinity: it never believed, such as one that was stopped before it could look. */
  from: number
  /** Until here it certainly believed to hold the lock. */
  until: number
  /** It left by itself. */
  ended: boolean
}

/** Milliseconds of the machine's monotonic clock. */
export function machineClock(): number {
  return Number(process.hrtime.bigint()) / 1e6
}

export interface History {
  sections: Section[]
  collisions: { id: string; at: number; with: string }[]
}

export function readHistory(files: readonly string[]): History {
  const sections = new Map<string, Section>()
  const collisions: History['collisions'] = []
  for (const file of files) {
    for (const text of readFileSync(file, 'utf8').split('\n')) {
      if (!text.endsWith('}')) continue // cut off in the middle of a write
      const line = JSON.parse(text) as Line
      if (line.type === 'began') {
        const { id, pid, mode, token, at } = line
        sections.set(id, {
          id,
          pid,
          mode,
          token: BigInt(token),
          from: Number.POSITIVE_INFINITY,
          until: at,
          ended: false,
        })
        continue
      }
      const section = sections.get(line.id)
      if (line.type === 'collision') collisions.push(line)
      else if (section && line.type === 'believed') {
        section.from = Math.min(section.from, line.at)
        section.until = Math.max(section.until, line.at)
      } else if (section) section.ended = true
    }
  }
  return { sections: [...sections.values()], collisions }
}

/** Who created the file that only one can create; undefined if nobody has it now. */
export function occupant(file: string): { pid: number; id: string } | undefined {
  try {
    const [pid = '', id = ''] = readFileSync(file, 'utf8').split(' ')
    return { pid: Number(pid), id }
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
    throw error
  }
}
