/** A slice of `npm run prove -- http`. */
import { expect, test } from 'vitest'
import { storm } from '../../../testbed/http/storm.js'

test.each(['redis', 'postgres'] as const)(
  'no key runs twice at once or after its record, and every key ends, on %s',
  async (kind) => {
    const report = await storm({ kind, servers: 3, keys: 40, atOnce: 20, ttlMs: 2_500, killEveryMs: 1_500 })
    expect(report).toMatchObject({ overlaps: [], runsAfterRecord: [], differingAnswers: [], unended: [] })
    expect(report.runs).toBeGreaterThanOrEqual(40)
    expect(report.kills).toBeGreaterThan(0)
  },
  180_000,
)
