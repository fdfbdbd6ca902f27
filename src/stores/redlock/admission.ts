/**
 * Who may vote. Pure: what all nodes said, twice in a row, goes in; what to tell each of them comes out.
 * The reasoning is in `docs/adr/redlock-restart.md`.
 *
 * @module
 */
import type { Admission, NodeRecord } from './node.js'

type Records = readonly (NodeRecord | undefined)[]

export interface Verdict {
  admissions: (Admission | undefined)[]
  /** Something could be decided if a second look, begun after this one ended, says the same. */
  lookAgain: boolean
}

/**
 * `now` and `before` are two looks at all nodes, the second begun after the first had ended. What both of them say held
 * at one moment in between, on all nodes at once; one look alone is spread over time and proves no such thing.
 */
export function decide(now: Records, before: Records, rules: { majority: number; maxTtlMs: number }): Verdict {
  const size = now.length
  const seen = now.filter((record) => record !== undefined)
  const voters = seen.filter((record) => record.state === 'votes')
  const sitOutMs = Math.max(rules.maxTtlMs, ...seen.map((record) => record.longestMs))
  const hasSatOut = (record: NodeRecord | undefined): boolean =>
    record !== undefined && record.state !== 'votes' && record.ageMs >= sitOutMs
  const same = (i: number): boolean => before[i]?.id === now[i]?.id

  const allNew = seen.length === size && seen.every((record) => record.state === 'new')
  // So many others that every majority of old has one among them which still knows.
  const enoughKnow = voters.length >= size - rules.majority + 1
  // So many lost that no majority of old can be asked ever again. Tokens then grow by the nodes' clocks.
  const tooManyLost = seen.filter(hasSatOut).length >= rules.majority
  const counter = Math.max(0, ...seen.map((record) => record.counter))

  let lookAgain = false
  const admissions = now.map((record, i): Admission | undefined => {
    if (!record || record.state === 'votes') return undefined
    const { id } = record
    if (record.state === 'new') {
      const founded = voters.find((voter) => voter.manifest.split(' ').includes(id))
      if (founded) return { as: 'founder', id, manifest: founded.manifest }
      if (allNew) {
        if (now.every((_, j) => same(j))) return { as: 'founder', id, manifest: seen.map((node) => node.id).join(' ') }
        lookAgain = true
        return undefined
      }
    }
    if (hasSatOut(record) && (enoughKnow || tooManyLost)) {
      if (same(i) && hasSatOut(before[i])) return { as: 'returner', id, counter, longestMs: sitOutMs }
      lookAgain = true
      return undefined
    }
    const othersExist = seen.some((other) => other.state !== 'new')
    return record.state === 'new' && othersExist ? { as: 'loser', id } : undefined
  })
  return { admissions, lookAgain }
}
