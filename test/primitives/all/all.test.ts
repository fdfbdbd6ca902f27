import { expect, test } from 'vitest'
import { startChild, temporaryFolder } from '../../support/children.js'
import { everywhere, kinds } from '../../support/places.js'
import { allCases } from './cases.js'

everywhere(allCases)

const MOVER = new URL('mover.child.ts', import.meta.url)

for (const kind of [kinds.sqlite, kinds.redis]) {
  test(`${kind.name}: four processes and random subsets of eight names: no deadlock, no overlap`, async () => {
    const place = await kind.open()
    const folder = temporaryFolder()
    const children = Array.from({ length: 4 }, (_, i) =>
      startChild<{ calls: number; overlaps: number }>(MOVER, [place.url as string, folder, '25', String(i)]),
    )
    const reports = await Promise.all(children.map((child) => child.next()))
    expect(reports.map(({ calls, overlaps }) => [calls, overlaps])).toEqual(Array(4).fill([25, 0]))
    expect(await Promise.all(children.map((child) => child.ended))).toEqual([0, 0, 0, 0])
    await place.close()
  })
}
