/** The dashboard on the stores that its other tests do not use. */
import { expect, onTestFinished, test } from 'vitest'
import type { DashboardFacts, Hello, HolderChanges, HolderRow, LockDetail } from '../../src/dashboard/protocol.js'
import { createLocks, UnsupportedError } from '../../src/index.js'
import { kinds } from '../../testbed/fixtures.js'
import { serve } from './fixture.js'
import { eventFrom } from './stream.js'

test.each([
  { kind: kinds.postgres, queued: 1, session: undefined },
  { kind: kinds.advisory, queued: 1, session: true },
  { kind: kinds.redlock, queued: 0, session: undefined },
  { kind: kinds.etcd, queued: 1, session: undefined },
])(
  'on $kind.name, holders, waiters, elections and what is published are shown, and a lock can be released',
  async ({ kind, queued, session }) => {
    const fixture = await kind.open()
    const [store, other] = [await fixture.store(), await fixture.store()]
    const publish = store.features.values ? { publish: '1s' as const } : {}
    const [one, two] = [createLocks(store, { ttl: '5s', ...publish }), createLocks(other, { ttl: '5s', wait: '30s' })]
    onTestFinished(async () => {
      await Promise.all([one.close({ grace: 0 }), two.close({ grace: 0 })])
      await Promise.all([store.close(), other.close()])
      await fixture.close()
    })
    if (!store.features.values) expect(() => createLocks(store, { publish: '1s' })).toThrow(UnsupportedError)
    const lock = await one.acquire('a', { metadata: { job: 'x' } })
    const next = two.acquire('a')
    const address = await serve(two, { allowRelease: true }, onTestFinished)
    let row: HolderRow | undefined
    await eventFrom<HolderChanges>(address, 'locks', ({ rows }) => {
      row = rows.find(({ name, waiting }) => name === 'a' && waiting === queued)
      return row !== undefined
    })
    expect(row).toMatchObject({
      holder: lock.holder,
      metadata: '{"job":"x"}',
      health: { state: 'alive', process: 'running' },
    })
    expect(row?.health.session).toBe(session)
    const hello = await eventFrom<Hello>(address, 'hello', () => true)
    expect([hello.limiters, hello.publish]).toEqual([store.take !== undefined, store.features.values])
    if (store.features.values) {
      const election = one.election('boss')
      void election.run(({ signal }) => new Promise((resolve) => signal.addEventListener('abort', resolve)))
      const { terms } = await eventFrom<DashboardFacts>(address, 'facts', (facts) => facts.terms.length > 0)
      expect(terms).toMatchObject([{ name: 'boss', leader: (await election.leader())?.leader }])
    }
    const detail = (await (await fetch(`${address}api/lock?name=a`)).json()) as LockDetail
    expect(detail.waiters).toHaveLength(queued)
    if (store.features.values) await eventFrom<DashboardFacts>(address, 'facts', ({ publishing }) => publishing === 1)
    const body = JSON.stringify({ kind: 'lock', name: 'a', holders: [lock.holder] })
    const headers = { 'content-type': 'application/json', 'x-leasehold-dashboard': '1' }
    const released = await fetch(`${address}api/release`, { method: 'POST', headers, body })
    expect(await released.json()).toEqual({ released: [lock.holder] })
    await (await next).release()
  },
)
