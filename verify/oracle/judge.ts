import type { OracleHistory, Section } from './record.js'

/** A holder was revoked at this time, and may believe in its lock only until its lease would have ended. */
export interface Break {
  holder: string
  at: number
}

export interface OracleVerdict {
  violations: string[]
  sections: number
  /** How often the lock went from one process to another: a run without any has proven nothing. */
  handoffs: number
}

/** Judges what the processes believed, without knowing how they came to believe it. */
export function judge(
  { sections: all, collisions }: OracleHistory,
  breaks: readonly Break[],
  ttlMs: number,
): OracleVerdict {
  const sections = all.filter((section) => section.from < Number.POSITIVE_INFINITY).sort((a, b) => a.from - b.from)
  const violations = collisions.map(
    (collision) => `${collision.id} entered while ${collision.with} was inside (open 'wx' failed)`,
  )
  violations.push(...overlaps(sections, new Set(breaks.map((cut) => cut.holder))))
  violations.push(...tokens(sections))
  for (const { holder, at } of breaks) {
    const section = sections.find((candidate) => candidate.id === holder)
    if (section && section.until > at + ttlMs) {
      violations.push(`${holder} was revoked, and still believed ${Math.round(section.until - at)} ms later`)
    }
  }
  const exclusive = sections.filter((section) => section.mode === 'exclusive')
  const handoffs = exclusive.filter((section, i) => i > 0 && section.pid !== exclusive[i - 1]?.pid).length
  return { violations, sections: sections.length, handoffs }
}

/** No process believes to hold the lock while a writer does. Revoked holders are judged by how long they believed. */
function overlaps(sections: readonly Section[], cutOff: ReadonlySet<string>): string[] {
  const found: string[] = []
  const open: Section[] = []
  for (const section of sections) {
    if (cutOff.has(section.id)) continue
    for (let i = open.length - 1; i >= 0; i--) if ((open[i] as Section).until < section.from) open.splice(i, 1)
    for (const other of open) {
      if (other.mode === 'shared' && section.mode === 'shared') continue
      const ms = Math.min(other.until, section.until) - section.from
      found.push(
        `${section.id} (${section.mode}) and ${other.id} (${other.mode}) both believed for ${ms.toFixed(1)} ms`,
      )
    }
    open.push(section)
  }
  return found
}

/** Tokens of exclusive sections are unique, and grow in the order of the sections. */
function tokens(sections: readonly Section[]): string[] {
  const found: string[] = []
  let last: Section | undefined
  for (const section of sections) {
    if (section.mode !== 'exclusive') continue
    if (last && section.token <= last.token) {
      const word = section.token === last.token ? 'repeats' : 'is smaller than'
      found.push(`the token ${section.token} of ${section.id} ${word} ${last.token} of ${last.id} before it`)
    }
    last = section
  }
  return found
}
