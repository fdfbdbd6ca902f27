import { readFileSync } from 'node:fs'

/**
 * What one process believed, by the one clock that all processes of a machine share (process.hrtime). Written as it
 * happens, so that a killed process has still reported what it believed.
 */
export type OracleRecord =
  | { type: 'began'; id: string; pid: number; mode: 'exclusive' | 'shared'; token: string; at: number }
  /** At `at`, just before the check, and the answer was: held. */
  | { type: 'believed'; id: string; at: number }
  | { type: 'ended'; id: string; at: number }
  | { type: 'collision'; id: string; at: number; with: string }

/** One period in the critical section. */
export interface Section {
  id: string
  pid: number
  mode: 'exclusive' | 'shared'
  token: bigint
  /** The first belief. Infinity: it never believed, such as a process that was stopped before it could check. */
  from: number
  /** The last moment at which it certainly believed to hold the lock. */
  until: number
  /** True if it left by itself. */
  ended: boolean
}

/** Milliseconds of the machine's monotonic clock. */
export function machineClock(): number {
  return Number(process.hrtime.bigint()) / 1e6
}

export interface OracleHistory {
  sections: Section[]
  collisions: { id: string; at: number; with: string }[]
}

export function readHistory(files: readonly string[]): OracleHistory {
  const sections = new Map<string, Section>()
  const collisions: OracleHistory['collisions'] = []
  for (const file of files) {
    for (const text of readFileSync(file, 'utf8').split('\n')) {
      if (!text.endsWith('}')) continue // The process was killed in the middle of a write.
      const line = JSON.parse(text) as OracleRecord
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

/** The process that created the file that only one can create. Undefined if the file does not exist now. */
export function occupant(file: string): { pid: number; id: string } | undefined {
  try {
    const [pid = '', id = ''] = readFileSync(file, 'utf8').split(' ')
    return { pid: Number(pid), id }
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
    throw error
  }
}
