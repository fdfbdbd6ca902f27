import { setTimeout as sleep } from 'node:timers/promises'
import { createLocks } from '../../../src/index.js'
import { type Child, startChild } from '../../support/children.js'
import { openStore } from '../../../src/open-store.js'
import type { Proving } from '../proving.js'
import { chances, excesses, ms, type Section } from './history.js'
import type { Place } from './places.js'
import type { Line } from './sharer.child.js'

const SHARER = new URL('sharer.child.ts', import.meta.url)
const PROCESSES = 6
const PERMITS = 3
/** What a writer weighs: more than all readers there can be. */
const WRITER = 1_000

/** Readers, writers and takers of permits, some of which are killed while they are inside. */
export async function shares(p: Proving, place: Place): Promise<void> {
  const office = new Office(place)
  const chance = chances(p.seed)
  let kills = 0
  try {
    await Promise.all(Array.from({ length: PROCESSES }, () => office.hire()))
    const until = performance.now() + p.seconds * 200
    while (performance.now() < until) {
      await sleep(300 + chance() * 500)
      if (await office.killSomebodyInside(chance)) kills++
    }
  } finally {
    await office.dismiss()
  }
  const { pages, permits } = office
  const writes = pages.filter(({ weight }) => weight === WRITER).length
  const [torn, over] = [excesses(pages, WRITER), excesses(permits, PERMITS)]
  p.check(
    `${place.name}: readers and writers in ${PROCESSES} processes, some killed inside: a writer is alone`,
    torn.length === 0 && writes >= 10 && kills > 0,
    `${pages.length - writes} reads, ${writes} writes, ${kills} killed, ${torn.length} overlaps${torn[0] ? ` (${torn[0]})` : ''}`,
  )
  p.check(
    `${place.name}: permits of ${PERMITS} in ${PROCESSES} processes, some killed inside: never more than ${PERMITS}`,
    over.length === 0 && permits.length >= 20,
    `${permits.length} taken, ${over.length} times too many${over[0] ? ` (${over[0]})` : ''}`,
  )
  await everythingIsFree(p, place)
}

/** So long a place in line outlives a waiter that is dead: longer than the leases of those who held. */
const PLACE_MS = 3_000

/** The dead free exactly what they had: all of it, when their time has passed. */
async function everythingIsFree(p: Proving, place: Place): Promise<void> {
  const store = await openStore(place.url)
  const locks = createLocks(store, { wait: '10s' })
  const began = performance.now()
  const page = locks.acquire('pages')
  const permits = Array.from({ length: PERMITS }, () => locks.semaphore('permits', PERMITS).acquire())
  const held = await Promise.allSettled([page, ...permits])
  const took = performance.now() - began
  p.check(
    `${place.name}: all killed at once, those in line too, and everything is free 1 s after their places have passed`,
    held.every(({ status }) => status === 'fulfilled') && took < PLACE_MS + 1_000,
    `${ms(took)} ms, with places of 3 s where there is a line`,
  )
  await locks.close()
  await store.close()
}

/** Processes that share, and all that they believed. */
class Office {
  readonly pages: Section[] = []
  readonly permits: Section[] = []
  readonly #place: Place
  readonly #open = new Map<string, { section: Section; child: Child<Line> }>()
  readonly #children = new Set<Child<Line>>()

  constructor(place: Place) {
    this.#place = place
  }

  async hire(): Promise<void> {
    const child = startChild<Line>(SHARER, [this.#place.url, String(PERMITS), String(WRITER)])
    this.#children.add(child)
    await child.next()
    void this.#listen(child)
  }

  /** Anyone who holds nothing would show little. */
  async killSomebodyInside(chance: () => number): Promise<boolean> {
    const inside = [...this.#open.values()]
    const victim = inside[Math.floor(chance() * inside.length)]?.child
    if (!victim) return false
    await this.#kill(victim)
    // While the others go on.
    this.hire().catch(() => {})
    return true
  }

  async dismiss(): Promise<void> {
    await Promise.all([...this.#children].map((child) => this.#kill(child)))
  }

  async #kill(child: Child<Line>): Promise<void> {
    this.#children.delete(child)
    child.kill('SIGKILL')
    await child.ended
    for (const [id, open] of this.#open) if (open.child === child) this.#open.delete(id)
  }

  async #listen(child: Child<Line>): Promise<void> {
    for (;;) {
      const line = await child.next().catch(() => undefined)
      if (!line) return
      if (line.type === 'ended') this.#open.delete(line.id)
      else if (line.type === 'believes') this.#note(child, line)
    }
  }

  #note(child: Child<Line>, { id, of, weight, at }: Extract<Line, { type: 'believes' }>): void {
    const open = this.#open.get(id)
    if (open) {
      open.section.until = at
      return
    }
    const section: Section = { who: id, weight, from: at, until: at }
    this[of].push(section)
    this.#open.set(id, { section, child })
  }
}
