import { setTimeout as sleep } from 'node:timers/promises'
import { createLocks } from '../../../src/index.js'
import { type Child, startChild } from '../../../testbed/children.js'
import { openStore } from '../../../src/open-store.js'
import type { Proving } from '../proving.js'
import { chances, excesses, ms, type HeldPeriod } from './history.js'
import type { SharedStore } from './stores.js'
import type { SharerReport } from './sharer.child.js'

const SHARER = new URL('sharer.child.ts', import.meta.url)
const PROCESSES = 6
const PERMITS = 3
/** The weight of a writer: more than all readers there can be. */
const WRITER = 1_000

/** Readers, writers and holders of permits, some of which are killed while they hold. */
export async function shares(p: Proving, store: SharedStore): Promise<void> {
  const sharers = new Sharers(store)
  const chance = chances(p.seed)
  let kills = 0
  try {
    await Promise.all(Array.from({ length: PROCESSES }, () => sharers.start()))
    const until = performance.now() + p.seconds * 200
    while (performance.now() < until) {
      await sleep(300 + chance() * 500)
      if (await sharers.killHolder(chance)) kills++
    }
  } finally {
    await sharers.stop()
  }
  const { pages, permits } = sharers
  const writes = pages.filter(({ weight }) => weight === WRITER).length
  const [torn, over] = [excesses(pages, WRITER), excesses(permits, PERMITS)]
  p.check(
    `${store.name}: readers and writers in ${PROCESSES} processes, some killed inside: a writer is alone`,
    torn.length === 0 && writes >= 10 && kills > 0,
    `${pages.length - writes} reads, ${writes} writes, ${kills} killed, ${torn.length} overlaps${torn[0] ? ` (${torn[0]})` : ''}`,
  )
  p.check(
    `${store.name}: permits of ${PERMITS} in ${PROCESSES} processes, some killed inside: never more than ${PERMITS}`,
    over.length === 0 && permits.length >= 20,
    `${permits.length} taken, ${over.length} times too many${over[0] ? ` (${over[0]})` : ''}`,
  )
  await everythingIsFree(p, store)
}

/** QUEUE_MS: how long the queue entry of a dead waiter lasts: longer than the leases of the holders. */
const QUEUE_MS = 3_000

/** Dead processes free exactly what they held: all of it, when their leases have expired. */
async function everythingIsFree(p: Proving, { name, url }: SharedStore): Promise<void> {
  const store = await openStore(url)
  const locks = createLocks(store, { wait: '10s' })
  const began = performance.now()
  const page = locks.acquire('pages')
  const permits = Array.from({ length: PERMITS }, () => locks.semaphore('permits', PERMITS).acquire())
  const held = await Promise.allSettled([page, ...permits])
  const took = performance.now() - began
  p.check(
    `${name}: all killed at once, waiters too, and everything is free 1 s after their queue entries have expired`,
    held.every(({ status }) => status === 'fulfilled') && took < QUEUE_MS + 1_000,
    `${ms(took)} ms, with queue entries of 3 s where there is a queue`,
  )
  await locks.close()
  await store.close()
}

/** The processes, and all that they believed. */
class Sharers {
  readonly pages: HeldPeriod[] = []
  readonly permits: HeldPeriod[] = []
  readonly #store: SharedStore
  readonly #open = new Map<string, { period: HeldPeriod; child: Child<SharerReport> }>()
  readonly #children = new Set<Child<SharerReport>>()

  constructor(store: SharedStore) {
    this.#store = store
  }

  async start(): Promise<void> {
    const child = startChild<SharerReport>(SHARER, [this.#store.url, String(PERMITS), String(WRITER)])
    this.#children.add(child)
    await child.next()
    void this.#listen(child)
  }

  /** Kills a process that holds something: killing any other would prove little. */
  async killHolder(chance: () => number): Promise<boolean> {
    const inside = [...this.#open.values()]
    const victim = inside[Math.floor(chance() * inside.length)]?.child
    if (!victim) return false
    await this.#kill(victim)
    // In the background, while the others continue.
    this.start().catch(() => {})
    return true
  }

  async stop(): Promise<void> {
    await Promise.all([...this.#children].map((child) => this.#kill(child)))
  }

  async #kill(child: Child<SharerReport>): Promise<void> {
    this.#children.delete(child)
    child.kill('SIGKILL')
    await child.ended
    for (const [id, open] of this.#open) if (open.child === child) this.#open.delete(id)
  }

  async #listen(child: Child<SharerReport>): Promise<void> {
    for (;;) {
      const report = await child.next().catch(() => undefined)
      if (!report) return
      if (report.type === 'ended') this.#open.delete(report.id)
      else if (report.type === 'believes') this.#record(child, report)
    }
  }

  #record(child: Child<SharerReport>, { id, of, weight, at }: Extract<SharerReport, { type: 'believes' }>): void {
    const open = this.#open.get(id)
    if (open) {
      open.period.until = at
      return
    }
    const period: HeldPeriod = { who: id, weight, from: at, until: at }
    this[of].push(period)
    this.#open.set(id, { period, child })
  }
}
