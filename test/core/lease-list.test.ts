import { expect, test } from 'vitest'
import { LeaseList, type ListedLease } from '../../src/core/lease-list.js'

interface Listed extends ListedLease<Listed> {
  owner: string
}

const leaseOf = (owner: string): Listed => ({ owner, earlier: undefined, later: undefined })

test('a lease list holds and finds what a map by owner does', () => {
  const [list, expected] = [new LeaseList<Listed>(), new Map<string, Listed>()]
  let state = 7
  const random = (below: number): number => {
    state = (Math.imul(state, 48_271) >>> 0) % 2_147_483_647
    return state % below
  }
  let owners = 0
  for (let step = 0; step < 20_000; step++) {
    // Mostly more are added than removed for a while, and then the other way round.
    const grows = Math.floor(step / 100) % 2 === 0
    const act = random(10)
    if (act < (grows ? 6 : 3)) {
      const lease = leaseOf(`o${owners++}`)
      expected.set(lease.owner, lease)
      list.add(lease)
    } else if (act < 9) {
      const chosen = [...expected.values()][random(Math.max(expected.size, 1))]
      if (chosen) {
        expected.delete(chosen.owner)
        expect(list.remove(chosen)).toBe(true)
        expect(list.remove(chosen)).toBe(false)
      }
    } else {
      const owner = `o${random(owners + 2)}`
      expect(list.find(owner)).toBe(expected.get(owner))
    }
    expect(list.size).toBe(expected.size)
    if (step % 100 === 0) expect(list.all()).toEqual([...expected.values()])
  }
})

test('a lease list that was emptied keeps no lease alive', () => {
  const list = new LeaseList<Listed>()
  const leases = Array.from({ length: 20 }, (_, i) => leaseOf(`o${i}`))
  for (const lease of leases) list.add(lease)
  expect(list.find('o3')).toBe(leases[3])
  for (const lease of leases) list.remove(lease)
  expect(list.all()).toEqual([])
  expect(list.find('o3')).toBeUndefined()
  expect(leases.every(({ earlier, later }) => !earlier && !later)).toBe(true)
})
