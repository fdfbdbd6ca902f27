import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest'
import { type FixtureKind, kinds, type Fixture } from '../../../testbed/fixtures.js'
import { startChild } from '../../../testbed/children.js'
import type { ClientReport, ClientOrder } from './client.child.js'

const CLIENT = new URL('client.child.ts', import.meta.url)

/** A process, and what it reports. */
class Client {
  readonly #child: ReturnType<typeof startChild<ClientReport>>
  id = ''

  constructor(url: string) {
    this.#child = startChild<ClientReport>(CLIENT, [url], onTestFinished)
  }

  async ready(): Promise<this> {
    const { ready } = await this.next<{ ready: string }>('ready')
    this.id = ready
    return this
  }

  tell(order: ClientOrder): void {
    this.#child.tell(order)
  }

  async next<L extends ClientReport>(what: 'ready' | 'granted' | 'done' | 'snapshot'): Promise<L> {
    return (await this.#child.until((report) => what in report)) as L
  }

  async query(): Promise<{ held: unknown[]; pending: unknown[] }> {
    this.tell({ query: true })
    return (await this.next<{ snapshot: { held: unknown[]; pending: unknown[] } }>('snapshot')).snapshot
  }

  kill(): void {
    this.#child.kill('SIGKILL')
  }

  /** Waits until this many requests are pending, as this process sees it. */
  async pending(count: number): Promise<void> {
    await expect.poll(async () => (await this.query()).pending.length, { timeout: 10_000 }).toBe(count)
  }
}

function across(kind: FixtureKind): void {
  describe(`${kind.name}, across processes`, () => {
    let fixture: Fixture
    beforeAll(async () => {
      fixture = await kind.open()
    })
    afterAll(() => fixture.close())

    test('requests wait for each other, see each other and are granted in the order of their calls', async () => {
      const [a, b, c] = (await Promise.all([0, 1, 2].map(() => new Client(fixture.url as string).ready()))) as [
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
      a.tell({ finish: 'writer' })
      expect(await b.next('granted')).toEqual({ granted: 'name shared', as: 'reader' })
      b.tell({ finish: 'reader' })
      expect(await b.next('done')).toEqual({ done: 'reader', result: 'reader is done' })
      expect(await c.next('granted')).toEqual({ granted: 'name exclusive', as: 'last' })
      // The stealing request is in another process than the stolen one, and a waiting one can still be cancelled.
      b.tell({ request: 'name', as: 'impatient', abortable: true })
      await a.pending(1)
      b.tell({ abort: 'impatient' })
      expect(await b.next('done')).toEqual({ done: 'impatient', error: 'AbortError' })
      a.tell({ request: 'name', as: 'stealing', options: { steal: true } })
      expect(await a.next('granted')).toEqual({ granted: 'name exclusive', as: 'stealing' })
      expect(await c.next('done')).toEqual({ done: 'last', error: 'AbortError' })
      b.tell({ request: 'name', as: 'polite', options: { ifAvailable: true } })
      expect(await b.next('granted')).toEqual({ granted: null, as: 'polite' })
    })
  })
}

for (const kind of [kinds.sqlite, kinds.redis, kinds.postgres]) across(kind)

test('sqlite: a process that dies with the lock lets the next one in when its lease has expired', async () => {
  const fixture = await kinds.sqlite.open()
  const [dying, successor] = (await Promise.all([0, 1].map(() => new Client(fixture.url as string).ready()))) as [
    Client,
    Client,
  ]
  dying.tell({ request: 'expiring', as: 'first' })
  await dying.next('granted')
  successor.tell({ request: 'expiring', as: 'second' })
  await successor.pending(1)
  dying.kill()
  expect(await successor.next('granted')).toEqual({ granted: 'expiring exclusive', as: 'second' })
  expect((await successor.query()).held).toEqual([{ name: 'expiring', mode: 'exclusive', clientId: successor.id }])
  await fixture.close()
})
