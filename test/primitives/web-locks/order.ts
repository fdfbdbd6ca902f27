/** Which requests may hold together, and which is next. */
import { strict as assert } from 'node:assert'
import type { Locks, WebLockOptions } from '../../../src/index.js'
import { type Case, needing } from '../../../src/testing/case.js'
import { type Requested, domException, hold, instances, pending, request } from './requests.js'

const isCalled = (requests: readonly Requested[]): boolean[] => requests.map(({ called }) => called)

export const orderCases: Case[] = needing(
  ['queue'],
  [
    {
      name: 'exclusive requests of one name are held one after the other, in the order of their calls',
      async run(t) {
        const [a, b, c] = await instances(t, 3)
        const order: number[] = []
        let inside = 0
        const turn = (locks: Locks, i: number): Promise<void> =>
          locks.request('name', async () => {
            assert.equal(++inside, 1, 'alone')
            order.push(i)
            await t.sleep(1)
            inside--
          })
        const held = await hold(t, a, 'name')
        const waiting: Promise<void>[] = []
        for (let i = 0; i < 9; i++) {
          waiting.push(turn([a, b, c][i % 3] as Locks, i))
          await pending(t, a, i + 1)
        }
        held.finish()
        await t.settled('all had their turn', Promise.all(waiting))
        assert.deepEqual(order, [0, 1, 2, 3, 4, 5, 6, 7, 8])
      },
    },
    {
      name: 'requests that one instance makes without waiting are granted in the order of their calls',
      async run(t) {
        const [locks] = await instances(t, 1)
        const order: number[] = []
        const all: Promise<unknown>[] = []
        for (let i = 0; i < 20; i++) {
          all.push(locks.request('name', () => order.push(i)))
          // Some in one turn of the event loop, some in the next.
          if (i % 3 === 0) await new Promise((resolve) => setImmediate(resolve))
        }
        await t.settled('all had their turn', Promise.all(all))
        assert.deepEqual(
          order,
          order.map((_, i) => i),
        )
      },
    },
    {
      name: 'different names are independent',
      async run(t) {
        const [a, b] = await instances(t, 2)
        const names = ['one', 'two', 'three']
        const held = await Promise.all(names.map((name, i) => hold(t, i % 2 ? a : b, name)))
        assert.deepEqual(isCalled(held), [true, true, true])
        const waiting = request(a, 'two')
        await pending(t, a, 1)
        held[0]?.finish()
        held[2]?.finish()
        await Promise.all([held[0]?.outcome, held[2]?.outcome])
        assert.equal(waiting.called, false)
        held[1]?.finish()
        await t.settled('it is free', waiting.lock)
        waiting.finish()
        await waiting.outcome
      },
    },
    {
      name: 'shared requests of one name are held together by several instances',
      async run(t) {
        const all = await instances(t, 3)
        const held = await Promise.all([...all, ...all].map((locks) => hold(t, locks, 'name', { mode: 'shared' })))
        assert.equal((await all[0].query()).held.length, 6)
        for (const { finish } of held) finish()
        await Promise.all(held.map(({ outcome }) => outcome))
      },
    },
    {
      name: 'a shared request waits for an exclusive one, and an exclusive one for every shared one',
      async run(t) {
        const [a, b, c] = await instances(t, 3)
        const writing = await hold(t, a, 'name')
        const readers = [request(b, 'name', { mode: 'shared' }), request(c, 'name', { mode: 'shared' })]
        await pending(t, a, 2)
        assert.deepEqual(isCalled(readers), [false, false])
        writing.finish()
        await t.settled('both read', Promise.all(readers.map(({ lock }) => lock)))
        const next = request(a, 'name')
        await pending(t, a, 1)
        readers[0]?.finish()
        await readers[0]?.outcome
        await pending(t, a, 1)
        assert.equal(next.called, false)
        readers[1]?.finish()
        await t.settled('it writes', next.lock)
        next.finish()
        await next.outcome
      },
    },
    {
      name: 'a shared request behind a waiting exclusive one waits, although the lock is held shared',
      async run(t) {
        const [a, b, c] = await instances(t, 3)
        const reading = await hold(t, a, 'name', { mode: 'shared' })
        const writer = request(b, 'name')
        await pending(t, a, 1)
        const late = [request(c, 'name', { mode: 'shared' }), request(a, 'name', { mode: 'shared' })]
        await pending(t, a, 3)
        assert.deepEqual(isCalled([writer, ...late]), [false, false, false])
        reading.finish()
        await t.settled('the writer is next', writer.lock)
        assert.deepEqual(isCalled(late), [false, false])
        await pending(t, a, 2)
        writer.finish()
        await t.settled('then both readers', Promise.all(late.map(({ lock }) => lock)))
        for (const { finish } of late) finish()
        await Promise.all(late.map(({ outcome }) => outcome))
      },
    },
    {
      name: 'a mixed queue is served from its head: all adjacent shared requests together, or one exclusive request',
      async run(t) {
        const all = await instances(t, 3)
        const modes = ['shared', 'shared', 'exclusive', 'shared', 'exclusive', 'exclusive', 'shared', 'shared'] as const
        const first = await hold(t, all[0], 'name')
        const queue: Requested[] = []
        for (const [i, mode] of modes.entries()) {
          queue.push(request(all[i % 3] as Locks, 'name', { mode }))
          await pending(t, all[0], i + 1)
        }
        first.finish()
        for (const group of [[0, 1], [2], [3], [4], [5], [6, 7]]) {
          const members = group.map((i) => queue[i] as Requested)
          await t.settled(`${group} are granted`, Promise.all(members.map(({ lock }) => lock)))
          const last = group.at(-1) as number
          assert.deepEqual(
            isCalled(queue),
            queue.map((_, i) => i <= last),
          )
          const { held, pending: behind } = await all[0].query()
          assert.deepEqual(
            held.map(({ mode }) => mode),
            group.map((i) => modes[i]),
          )
          assert.deepEqual(
            behind.map(({ mode }) => mode),
            modes.slice(last + 1),
          )
          for (const { finish } of members) finish()
          await Promise.all(members.map(({ outcome }) => outcome))
        }
      },
    },
    {
      name: 'a request that leaves the queue lets the requests behind it move up',
      async run(t) {
        const [a, b, c] = await instances(t, 3)
        const reading = await hold(t, a, 'name', { mode: 'shared' })
        const cancel = new AbortController()
        const writer = request(b, 'name', { signal: cancel.signal })
        await pending(t, a, 1)
        const late = request(c, 'name', { mode: 'shared' })
        await pending(t, a, 2)
        cancel.abort()
        await t.settled('beside the first reader', late.lock)
        assert.equal(writer.called, false)
        for (const { finish, outcome } of [reading, late]) {
          finish()
          await outcome
        }
      },
    },
    {
      name: 'callbacks of one instance are called in the order of the requests, across names and modes',
      async run(t) {
        const [locks] = await instances(t, 1)
        const order: string[] = []
        const call = (name: string, mode: 'shared' | 'exclusive', label: string): Promise<unknown> =>
          locks.request(name, { mode }, () => order.push(label))
        const all = [
          call('a', 'shared', 'a1'),
          call('a', 'shared', 'a2'),
          call('a', 'shared', 'a3'),
          call('b', 'exclusive', 'b'),
          call('c', 'shared', 'c'),
        ]
        await t.settled('all were called', Promise.all(all))
        assert.deepEqual(order, ['a1', 'a2', 'a3', 'b', 'c'])
      },
    },
    {
      name: 'requests with ifAvailable and steal are called back in the order of the requests, too',
      async run(t) {
        const [locks] = await instances(t, 1)
        const order: string[] = []
        const call = (name: string, options: WebLockOptions, label: string): Promise<unknown> =>
          locks.request(name, options, (lock) => order.push(lock ? label : `${label}: null`))
        const held = await hold(t, locks, 'held')
        const all = [
          call('a', { ifAvailable: true, mode: 'shared' }, 'a1'),
          call('a', { mode: 'shared' }, 'a2'),
          call('b', {}, 'b'),
          call('held', { ifAvailable: true }, 'busy'),
          call('c', { steal: true }, 'c'),
          call('d', { ifAvailable: true }, 'd'),
          call('e', {}, 'e'),
        ]
        await t.settled('all were called', Promise.all(all))
        assert.deepEqual(order, ['a1', 'a2', 'b', 'busy: null', 'c', 'd', 'e'])
        held.finish()
        await held.outcome
      },
    },
    {
      name: 'a request that was made right after one with ifAvailable is called before later ones that are granted with it',
      async run(t) {
        const [locks] = await instances(t, 1)
        const order: string[] = []
        const call = (name: string, options: WebLockOptions, label: string): Promise<unknown> =>
          locks.request(name, options, () => order.push(label))
        const held = await hold(t, locks, 'held')
        const looking = call('other', { ifAvailable: true }, 'other')
        const all = [looking, call('held', { mode: 'shared' }, 'first')]
        await t.settled('it was called', looking)
        all.push(call('held', { mode: 'shared' }, 'second'))
        await pending(t, locks, 2)
        held.finish()
        await t.settled('all were called', Promise.all(all))
        assert.deepEqual(order, ['other', 'first', 'second'])
      },
    },
    {
      name: 'a request that is stolen in the turn of its call is granted first, and then stolen',
      async run(t) {
        const [locks] = await instances(t, 1)
        const first = request(locks, 'name')
        const stealing = request(locks, 'name', { steal: true })
        await t.settled('the steal is granted', stealing.lock)
        await assert.rejects(t.settled('the first request ends', first.outcome), domException('AbortError'))
        stealing.finish()
        await t.settled('the steal ends', stealing.outcome)
      },
    },
    {
      name: 'every request of a chain of steals but the last rejects with AbortError',
      async run(t) {
        const [locks] = await instances(t, 1)
        const first = request(locks, 'name')
        const steals = Array.from({ length: 4 }, () => request(locks, 'name', { steal: true }))
        const last = steals.at(-1) as Requested
        await t.settled('the last is granted', last.lock)
        for (const { outcome } of [first, ...steals.slice(0, -1)]) {
          await assert.rejects(t.settled('an earlier request ends', outcome), domException('AbortError'))
        }
        last.finish()
        await t.settled('the last ends', last.outcome)
      },
    },
    {
      name: 'query() shows a request that was made right before it',
      async run(t) {
        const [locks] = await instances(t, 1)
        const held = request(locks, 'name')
        const waiting = request(locks, 'name')
        const seen = await locks.query()
        assert.deepEqual([seen.held.length, seen.pending.length], [1, 1])
        for (const { lock, finish, outcome } of [held, waiting]) {
          await t.settled('it is granted', lock)
          finish()
          await t.settled('it ends', outcome)
        }
      },
    },
  ],
)
