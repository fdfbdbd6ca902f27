/** What `query` shows: the holders and the waiters, in order, with their instance. */
import { strict as assert } from 'node:assert'
import type { WebLockInfo } from '../../../src/index.js'
import { type Case, needing } from '../../../src/testing/case.js'
import { hold, instances, pending, request } from './requests.js'

const brief = ({ name, mode }: WebLockInfo): string => `${name} ${mode}`

export const queryCases: Case[] = needing(
  ['queue'],
  [
    {
      name: 'query() returns two empty lists if nothing is held or pending',
      async run(t) {
        const [locks] = await instances(t, 1)
        assert.deepEqual(await locks.query(), { held: [], pending: [] })
      },
    },
    {
      name: 'a held lock is shown with name, mode and client, and no more after its release',
      async run(t) {
        const [a, b] = await instances(t, 2)
        const one = await hold(t, a, 'one')
        const two = await hold(t, b, 'two', { mode: 'shared' })
        const expected = [
          { name: 'one', mode: 'exclusive', clientId: a.clientId },
          { name: 'two', mode: 'shared', clientId: b.clientId },
        ]
        for (const locks of [a, b]) assert.deepEqual(await locks.query(), { held: expected, pending: [] })
        one.finish()
        await one.outcome
        assert.deepEqual(await b.query(), { held: expected.slice(1), pending: [] })
        two.finish()
        await two.outcome
        assert.deepEqual(await a.query(), { held: [], pending: [] })
      },
    },
    {
      name: 'pending requests of several instances and names are shown in the order of their calls',
      async run(t) {
        const [a, b, c] = await instances(t, 3)
        const held = [await hold(t, a, 'one'), await hold(t, b, 'two')]
        const waiting = []
        for (const [locks, name, mode] of [
          [b, 'one', 'shared'],
          [c, 'two', 'exclusive'],
          [a, 'one', 'exclusive'],
          [c, 'one', 'shared'],
          [a, 'two', 'shared'],
        ] as const) {
          waiting.push(request(locks, name, { mode }))
          await pending(t, a, waiting.length)
        }
        for (const locks of [a, b, c]) {
          const seen = (await locks.query()).pending
          const pendingOf = (wanted: string): string[] => seen.filter(({ name }) => name === wanted).map(brief)
          assert.deepEqual(pendingOf('one'), ['one shared', 'one exclusive', 'one shared'])
          assert.deepEqual(pendingOf('two'), ['two exclusive', 'two shared'])
          assert.deepEqual(
            seen.filter(({ name }) => name === 'one').map(({ clientId }) => clientId),
            [b, a, c].map(({ clientId }) => clientId),
          )
        }
        for (const { finish } of [...held, ...waiting]) finish()
        await t.settled('all are served', Promise.all([...held, ...waiting].map(({ outcome }) => outcome)))
        assert.deepEqual(await a.query(), { held: [], pending: [] })
      },
    },
    {
      name: 'held locks are shown in the order in which they were granted',
      async run(t) {
        const [a, b] = await instances(t, 2)
        const names = ['d', 'a', 'c', 'b']
        const held = []
        for (const [i, name] of names.entries()) held.push(await hold(t, i % 2 ? a : b, name))
        const shared = [await hold(t, a, 'e', { mode: 'shared' }), await hold(t, b, 'e', { mode: 'shared' })]
        const seen = (await b.query()).held
        assert.deepEqual(
          seen.map(({ name }) => name),
          [...names, 'e', 'e'],
        )
        assert.deepEqual(
          seen.slice(-2).map(({ clientId }) => clientId),
          [a.clientId, b.clientId],
        )
        for (const { finish, outcome } of [...held, ...shared]) {
          finish()
          await outcome
        }
      },
    },
    {
      name: 'two requests of one instance have the same clientId, and two instances never do',
      async run(t) {
        const [a, b] = await instances(t, 2)
        const held = await Promise.all([a, a, b].map((locks) => hold(t, locks, 'name', { mode: 'shared' })))
        const ids = (await a.query()).held.map(({ clientId }) => clientId)
        assert.deepEqual(ids.sort(), [a.clientId, a.clientId, b.clientId].sort())
        assert.notEqual(a.clientId, b.clientId)
        for (const { finish, outcome } of held) {
          finish()
          await outcome
        }
      },
    },
    {
      name: 'requests that were just made are shown, held or pending, by the instance that made them',
      async run(t) {
        const [locks] = await instances(t, 1)
        const requests = ['one', 'one', 'two'].map((name) => request(locks, name))
        const { held, pending: waiting } = await locks.query()
        assert.deepEqual([...held, ...waiting].map(({ name }) => name).sort(), ['one', 'one', 'two'])
        for (const { finish } of requests) finish()
        await t.settled('all are served', Promise.all(requests.map(({ outcome }) => outcome)))
      },
    },
    {
      name: 'a snapshot is a copy: it does not change, and changing it has no effect',
      async run(t) {
        const [locks] = await instances(t, 1)
        const held = await hold(t, locks, 'name')
        const before = await locks.query()
        before.held.push({ name: 'made up', mode: 'shared', clientId: 'nobody' })
        held.finish()
        await held.outcome
        assert.equal(before.held.length, 2)
        assert.deepEqual(await locks.query(), { held: [], pending: [] })
      },
    },
    {
      name: 'locks of acquire() are shown like those of request(); semaphores and other namespaces are not',
      async run(t) {
        const [a, b] = await instances(t, 2)
        const elsewhere = await t.locks({ namespace: t.name() })
        await using writer = await a.acquire('written')
        await using reader = await b.acquire('read', { mode: 'shared' })
        await using permit = await a.semaphore('counted', 2).acquire()
        await using other = await elsewhere.acquire('written')
        assert.ok(writer.isHeld && reader.isHeld && permit.isHeld && other.isHeld)
        assert.deepEqual((await a.query()).held, [
          { name: 'written', mode: 'exclusive', clientId: a.clientId },
          { name: 'read', mode: 'shared', clientId: b.clientId },
        ])
      },
    },
  ],
)
