import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type Kind, kinds, type Place } from '../../support/places.js'
import { startChild } from '../../support/children.js'
import type { Line, Order } from './client.child.js'

const CLIENT = new URL('client.child.ts', import.meta.url)

/** A process, and what it does. */
class Client {
  readonly #child: ReturnType<typeof startChild<Line>>
  id = ''

  constructor(url: string) {
    this.#child = startChild<Line>(CLIENT, [url])
  }

  async ready(): Promise<this> {
    const { ready } = await this.next<{ ready: string }>('ready')
    this.id = ready
    return this
  }

  tell(order: Order): void {
    this.#child.tell(order)
  }

  async next<L extends Line>(what: 'ready' | 'granted' | 'done' | 'snapshot'): Promise<L> {
    return (await this.#child.until((line) => what in line)) as L
  }

  async query(): Promise<{ held: unknown[]; pending: unknown[] }> {
    this.tell({ query: true })
    return (await this.next<{ snapshot: { held: unknown[]; pending: unknown[] } }>('snapshot')).snapshot
  }

  kill(): void {
    this.#child.kill('SIGKILL')
  }

  /** Until so many wait, as this process sees it. */
  async pending(count: number): Promise<void> {
    await expect.poll(async () => (await this.query()).pending.length, { timeout: 10_000 }).toBe(count)
  }
}

function across(kind: Kind): void {
  describe(`${kind.name}, across processes`, () => {
    let place: Place
    beforeAll(async () => {
      place = await kind.open()
    })
    afterAll(() => place.close())

    test('requests wait for each other, see each other and are granted in the order of asking', async () => {
      const [a, b, c] = (await Promise.all([0, 1, 2].map(() => new Client(place.url as string).ready()))) as [
        Client,
        Client,
        Client,
      ]
      a.tell({ request: 'name', as: 'writer' })
      expect(await a.next('granted')).toEqual({ granted: 'name exclusive', as: 'writer' })
      b.tell({ request: 'name', as: 'reader', options: { mode: 'shared' } })
      await c.pending(1)
      c.tell({ request: 'name', as: 'last' })
      await a.pending(2)
      expect(await a.query()).toEqual({
        held: [{ name: 'name', mode: 'exclusive', clientId: a.id }],
        pending: [
          { name: 'name', mode: 'shared', clientId: b.id },
          { name: 'name', mode: 'exclusive', clientId: c.id },
        ],
      })
      a.tell({ letGo: 'writer' })
      expect(await b.next('granted')).toEqual({ granted: 'name shared', as: 'reader' })
      b.tell({ letGo: 'reader' })
      expect(await b.next('done')).toEqual({ done: 'reader', result: 'reader is done' })
      expect(await c.next('granted')).toEqual({ granted: 'name exclusive', as: 'last' })
      // Who steals is in another process than the one that is robbed, and one that waits can still be cancelled.
      b.tell({ request: 'name', as: 'impatient', abortable: true })
      await a.pending(1)
      b.tell({ abort: 'impatient' })
      expect(await b.next('done')).toEqual({ done: 'impatient', error: 'AbortError' })
      a.tell({ request: 'name', as: 'thief', options: { steal: true } })
      expect(await a.next('granted')).toEqual({ granted: 'name exclusive', as: 'thief' })
      expect(await c.next('done')).toEqual({ done: 'last', error: 'AbortError' })
      b.tell({ request: 'name', as: 'polite', options: { ifAvailable: true } })
      expect(await b.next('granted')).toEqual({ granted: null, as: 'polite' })
    })
  })
}

for (const kind of [kinds.sqlite, kinds.redis, kinds.postgres]) across(kind)

test('sqlite: a process that dies with the lock lets the next one in when its time has passed', async () => {
  const place = await kinds.sqlite.open()
  const [dying, heir] = (await Promise.all([0, 1].map(() => new Client(place.url as string).ready()))) as [
    Client,
    Client,
  ]
  dying.tell({ request: 'mortal', as: 'first' })
  await dying.next('granted')
  heir.tell({ request: 'mortal', as: 'second' })
  await heir.pending(1)
  dying.kill()
  expect(await heir.next('granted')).toEqual({ granted: 'mortal exclusive', as: 'second' })
  expect((await heir.query()).held).toEqual([{ name: 'mortal', mode: 'exclusive', clientId: heir.id }])
  await place.close()
})
