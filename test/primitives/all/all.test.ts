import { expect, onTestFinished, test } from 'vitest'
import { startChild, temporaryFolder } from '../../../testbed/children.js'
import { everywhere, kinds } from '../../../testbed/fixtures.js'
import { allCases } from './cases.js'

everywhere(allCases)

const WITH_LOCKS = new URL('../../../testbed/children/with-locks.child.ts', import.meta.url)

for (const kind of [kinds.sqlite, kinds.redis]) {
  test(`${kind.name}: four processes that lock random subsets of eight names never deadlock and never overlap`, async () => {
    const fixture = await kind.open()
    const folder = temporaryFolder(onTestFinished)
    const children = Array.from({ length: 4 }, (_, i) =>
      startChild<{ calls: number; overlaps: number }>(
        WITH_LOCKS,
        [fixture.url as string, folder, '25', String(i)],
        onTestFinished,
      ),
    )
    const reports = await Promise.all(children.map((child) => child.next()))
    expect(reports.map(({ calls, overlaps }) => [calls, overlaps])).toEqual(Array(4).fill([25, 0]))
    expect(await Promise.all(children.map((child) => child.ended))).toEqual([0, 0, 0, 0])
    await fixture.close()
  })
}
