import { setTimeout as sleep } from 'node:timers/promises'
import type { Proving } from '../proving.js'
import { Crew, type TermRecord, type Woke } from './crew.js'
import { chances, clock, excesses, median, ms } from './history.js'
import type { Place } from './places.js'

const KILLS = 4
const RESIGNATIONS = 25
const FREEZES = 10
const CHANGES = 50
const CANDIDATES = 20

/** Killed and resigned leaders: how long until the next one leads. */
export async function handOvers(p: Proving, places: readonly Place[]): Promise<void> {
  const ttlMs = 1_000
  const crews = places.map((place) => new Crew(place, 'hand-over', ttlMs, 'believing'))
  try {
    await Promise.all(crews.map((crew) => crew.hire(KILLS + 3)))
    const gaps = await Promise.all(crews.map(killLeaders))
    for (const [i, { name }] of places.entries()) {
      const worst = Math.max(...(gaps[i] as number[]))
      p.check(
        `${name}: kill -9 of a leader, and another leads within ttl + 1 s`,
        worst < ttlMs + 1_000,
        `worst of ${KILLS} at ttl 1 s: ${ms(worst)} ms, median ${ms(median(gaps[i] as number[]))} ms`,
      )
    }
    for (const [i, { name }] of places.entries()) {
      const took = await resignLeaders(crews[i] as Crew, name === 'Redlock' ? 300 : 150)
      const worst = Math.max(...took)
      p.check(
        `${name}: resign, and another process leads within 100 ms`,
        worst < 100,
        `${took.length} times: median ${ms(median(took))} ms, worst ${ms(worst)} ms`,
      )
    }
  } finally {
    await Promise.all(crews.map((crew) => crew.dismiss()))
  }
}

async function killLeaders(crew: Crew): Promise<number[]> {
  const gaps: number[] = []
  let record = await crew.after(undefined)
  for (let i = 0; i < KILLS; i++) {
    // Long enough for the next one to stand in line, and at no particular moment of a heartbeat.
    await sleep(200 + i * 70)
    record = crew.latest as TermRecord
    const at = clock()
    await crew.kill(record.member)
    record = await crew.after(record)
    gaps.push((record.ledAt - at) / 1_000)
  }
  return gaps
}

/** From the call of `resign` to the first line of the next one's work, in another process. */
async function resignLeaders(crew: Crew, pauseMs: number): Promise<number[]> {
  const took: number[] = []
  while (took.length < RESIGNATIONS) {
    const record = crew.latest as TermRecord
    await sleep(pauseMs)
    const { member } = record
    const before = member.resigningAt
    crew.tell(member, 'resign')
    const next = await crew.after(record)
    if (next.member === member) throw new Error('who resigned was elected again although others waited')
    // What the next one says may be heard before what this one said.
    await crew.until('it resigned', () => member.resigningAt !== before)
    took.push((next.ledAt - member.resigningAt) / 1_000)
  }
  return took
}

/** Leaders that stop themselves in the middle of code, and look before anything else can run. */
export async function frozen(p: Proving, places: readonly Place[]): Promise<void> {
  const ttlMs = 500
  await Promise.all(
    places.map(async (place) => {
      const crew = new Crew(place, 'frozen', ttlMs, 'freezing')
      try {
        await crew.hire(2)
        const woke = await freezeLeaders(crew)
        const right = woke.filter(({ isLeader, aborted, healthy }) => !isLeader && aborted && !healthy).length
        const told = woke.filter(({ toldAfterATurn }) => toldAfterATurn).length
        p.check(
          `${place.name}: a leader frozen past its ttl knows at its very first check`,
          right === FREEZES && told === FREEZES,
          `isLeader, signal and health right in ${right} of ${FREEZES}; a signal taken earlier after one turn in ${told}`,
        )
      } finally {
        await crew.dismiss()
      }
    }),
  )
}

async function freezeLeaders(crew: Crew): Promise<Woke[]> {
  const woke: Woke[] = []
  let record = await crew.until('the first leader', () => crew.latest)
  for (let i = 0; i < FREEZES; i++) {
    const { member } = record
    const { term } = record
    await sleep(150)
    crew.tell(member, 'freeze')
    record = await crew.until('the next leader', () => (crew.latest?.term ?? 0n) > term && crew.latest)
    const before = member.woke.length
    member.child.kill('SIGCONT')
    woke.push(await crew.until('it woke', () => member.woke[before]))
  }
  return woke
}

/** Twenty candidates in twenty processes, whose leaders resign, are killed or frozen, again and again. */
export async function changes(p: Proving, place: Place): Promise<void> {
  const ttlMs = 600
  const crew = new Crew(place, 'changes', ttlMs, 'believing')
  const chance = chances(p.seed)
  const took: Record<Harm, number[]> = { resign: [], kill: [], freeze: [] }
  try {
    await crew.hire(CANDIDATES)
    let record = await crew.after(undefined)
    const until = performance.now() + p.seconds * 500
    for (let n = 0; n < CHANGES || performance.now() < until; n++) {
      await sleep(20 + chance() * 60)
      record = crew.latest as TermRecord
      const harm = pick(chance())
      const at = clock()
      await harms[harm](crew, record, ttlMs)
      record = await crew.after(record)
      took[harm].push((record.ledAt - at) / 1_000)
    }
    // What is still under way of the last change.
    await sleep(ttlMs)
  } finally {
    await crew.dismiss()
  }
  judgeChanges(p, place, crew, took)
}

type Harm = 'resign' | 'kill' | 'freeze'

function pick(chance: number): Harm {
  if (chance < 0.5) return 'resign'
  return chance < 0.75 ? 'kill' : 'freeze'
}

const harms: Record<Harm, (crew: Crew, record: TermRecord, ttlMs: number) => Promise<void>> = {
  async resign(crew, { member }) {
    crew.tell(member, 'resign')
  },
  async kill(crew, { member }) {
    await crew.kill(member)
    // While the others go on.
    crew.hire(1).catch(() => {})
  },
  async freeze(crew, record, ttlMs) {
    record.frozen = true
    record.member.child.kill('SIGSTOP')
    const deadline = performance.now() + ttlMs * 2
    // Stopped in the middle of a transaction, it may keep everybody else waiting.
    while (crew.latest === record && performance.now() < deadline) await sleep(10)
    await sleep(30)
    record.member.child.kill('SIGCONT')
  },
}

function judgeChanges(p: Proving, { name }: Place, crew: Crew, took: Record<Harm, number[]>): void {
  const { terms } = crew
  const inTime = terms.toSorted((a, b) => a.ledAt - b.ledAt)
  const back = inTime.filter(({ term }, i) => i > 0 && term <= (inTime[i - 1] as TermRecord).term).length
  const distinct = new Set(terms.map(({ term }) => term)).size
  const overlaps = excesses(crew.sections(), 1)
  const count = Object.values(took).reduce((sum, list) => sum + list.length, 0)
  const figures = Object.entries(took).map(([harm, list]) => `${list.length} ${harm} (median ${ms(median(list))} ms)`)
  p.check(
    `${name}: ${CANDIDATES} candidates in ${CANDIDATES} processes, ${count} changes: terms grow, never two alike, no two leaders`,
    count >= CHANGES && back === 0 && distinct === terms.length && overlaps.length === 0,
    `${terms.length} terms, ${terms.length - distinct} twice, ${back} not larger than the one before, ${overlaps.length} overlaps` +
      `${overlaps[0] ? ` (${overlaps[0]})` : ''}; ${figures.join(', ')}`,
  )
}
