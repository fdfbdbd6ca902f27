import { setTimeout as sleep } from 'node:timers/promises'
import type { Proving } from '../proving.js'
import { Candidates, type TermRecord, type Woke } from './candidates.js'
import { chances, clock, excesses, median, ms } from './history.js'
import type { SharedStore } from './stores.js'

const KILLS = 4
const RESIGNATIONS = 25
const FREEZES = 10
const CHANGES = 50
const CANDIDATES = 20

/** Killed and resigned leaders: how long until the next one leads. */
export async function handOffs(p: Proving, stores: readonly SharedStore[]): Promise<void> {
  const ttlMs = 1_000
  const groups = stores.map((store) => new Candidates(store, 'hand-off', ttlMs, 'believing'))
  try {
    await Promise.all(groups.map((candidates) => candidates.start(KILLS + 3)))
    const gaps = await Promise.all(groups.map(killLeaders))
    for (const [i, { name }] of stores.entries()) {
      const worst = Math.max(...(gaps[i] as number[]))
      p.check(
        `${name}: kill -9 of a leader, and another leads within ttl + 1 s`,
        worst < ttlMs + 1_000,
        `worst of ${KILLS} at ttl 1 s: ${ms(worst)} ms, median ${ms(median(gaps[i] as number[]))} ms`,
      )
    }
    for (const [i, { name }] of stores.entries()) {
      const took = await resignLeaders(groups[i] as Candidates, name === 'Redlock' ? 300 : 150)
      const worst = Math.max(...took)
      p.check(
        `${name}: resign, and another process leads within 100 ms`,
        worst < 100,
        `${took.length} times: median ${ms(median(took))} ms, worst ${ms(worst)} ms`,
      )
    }
  } finally {
    await Promise.all(groups.map((candidates) => candidates.dismiss()))
  }
}

async function killLeaders(candidates: Candidates): Promise<number[]> {
  const gaps: number[] = []
  let record = await candidates.after(undefined)
  for (let i = 0; i < KILLS; i++) {
    // Long enough for the next candidate to be queued, and at varying moments of a heartbeat.
    await sleep(200 + i * 70)
    record = candidates.latest as TermRecord
    const at = clock()
    await candidates.kill(record.member)
    record = await candidates.after(record)
    gaps.push((record.ledAt - at) / 1_000)
  }
  return gaps
}

/** From the call of `resign` to the first line of the work of the next leader, in another process. */
async function resignLeaders(candidates: Candidates, pauseMs: number): Promise<number[]> {
  const took: number[] = []
  while (took.length < RESIGNATIONS) {
    const record = candidates.latest as TermRecord
    await sleep(pauseMs)
    const { member } = record
    const before = member.resigningAt
    candidates.tell(member, 'resign')
    const next = await candidates.after(record)
    if (next.member === member) throw new Error('the candidate that resigned was elected again although others waited')
    // The report of the next leader may arrive before the report of this one.
    await candidates.until('it resigned', () => member.resigningAt !== before)
    took.push((next.ledAt - member.resigningAt) / 1_000)
  }
  return took
}

/** Leaders that stop their own process in the middle of code, and check before anything else can run. */
export async function frozen(p: Proving, stores: readonly SharedStore[]): Promise<void> {
  const ttlMs = 500
  await Promise.all(
    stores.map(async (store) => {
      const candidates = new Candidates(store, 'frozen', ttlMs, 'freezing')
      try {
        await candidates.start(2)
        const woke = await freezeLeaders(candidates)
        const right = woke.filter(({ isLeader, aborted, healthy }) => !isLeader && aborted && !healthy).length
        const told = woke.filter(({ toldAfterATurn }) => toldAfterATurn).length
        p.check(
          `${store.name}: a leader frozen past its ttl knows at its very first check`,
          right === FREEZES && told === FREEZES,
          `isLeader, signal and health right in ${right} of ${FREEZES}; a signal taken earlier after one turn in ${told}`,
        )
      } finally {
        await candidates.dismiss()
      }
    }),
  )
}

async function freezeLeaders(candidates: Candidates): Promise<Woke[]> {
  const woke: Woke[] = []
  let record = await candidates.until('the first leader', () => candidates.latest)
  for (let i = 0; i < FREEZES; i++) {
    const { member } = record
    const { term } = record
    await sleep(150)
    candidates.tell(member, 'freeze')
    record = await candidates.until(
      'the next leader',
      () => (candidates.latest?.term ?? 0n) > term && candidates.latest,
    )
    const before = member.woke.length
    member.child.kill('SIGCONT')
    woke.push(await candidates.until('it woke', () => member.woke[before]))
  }
  return woke
}

/** Twenty candidates in twenty processes, whose leaders resign, are killed or frozen, again and again. */
export async function changes(p: Proving, store: SharedStore): Promise<void> {
  const ttlMs = 600
  const candidates = new Candidates(store, 'changes', ttlMs, 'believing')
  const chance = chances(p.seed)
  const took: Record<Harm, number[]> = { resign: [], kill: [], freeze: [] }
  try {
    await candidates.start(CANDIDATES)
    let record = await candidates.after(undefined)
    const until = performance.now() + p.seconds * 500
    for (let n = 0; n < CHANGES || performance.now() < until; n++) {
      await sleep(20 + chance() * 60)
      record = candidates.latest as TermRecord
      const harm = pick(chance())
      const at = clock()
      await harms[harm](candidates, record, ttlMs)
      record = await candidates.after(record)
      took[harm].push((record.ledAt - at) / 1_000)
    }
    // Lets the last change finish.
    await sleep(ttlMs)
  } finally {
    await candidates.dismiss()
  }
  judgeChanges(p, store, candidates, took)
}

type Harm = 'resign' | 'kill' | 'freeze'

function pick(chance: number): Harm {
  if (chance < 0.5) return 'resign'
  return chance < 0.75 ? 'kill' : 'freeze'
}

const harms: Record<Harm, (candidates: Candidates, record: TermRecord, ttlMs: number) => Promise<void>> = {
  async resign(candidates, { member }) {
    candidates.tell(member, 'resign')
  },
  async kill(candidates, { member }) {
    await candidates.kill(member)
    // In the background, while the others continue.
    candidates.start(1).catch(() => {})
  },
  async freeze(candidates, record, ttlMs) {
    record.frozen = true
    record.member.child.kill('SIGSTOP')
    const deadline = performance.now() + ttlMs * 2
    // A process that is stopped in the middle of a transaction may block all others.
    while (candidates.latest === record && performance.now() < deadline) await sleep(10)
    await sleep(30)
    record.member.child.kill('SIGCONT')
  },
}

function judgeChanges(p: Proving, { name }: SharedStore, candidates: Candidates, took: Record<Harm, number[]>): void {
  const { terms } = candidates
  const inTime = terms.toSorted((a, b) => a.ledAt - b.ledAt)
  const back = inTime.filter(({ term }, i) => i > 0 && term <= (inTime[i - 1] as TermRecord).term).length
  const distinct = new Set(terms.map(({ term }) => term)).size
  const overlaps = excesses(candidates.periods(), 1)
  const count = Object.values(took).reduce((sum, list) => sum + list.length, 0)
  const figures = Object.entries(took).map(([harm, list]) => `${list.length} ${harm} (median ${ms(median(list))} ms)`)
  p.check(
    `${name}: ${CANDIDATES} candidates in ${CANDIDATES} processes, ${count} changes: terms grow, never two alike, no two leaders`,
    count >= CHANGES && back === 0 && distinct === terms.length && overlaps.length === 0,
    `${terms.length} terms, ${terms.length - distinct} twice, ${back} not larger than the one before, ${overlaps.length} overlaps` +
      `${overlaps[0] ? ` (${overlaps[0]})` : ''}; ${figures.join(', ')}`,
  )
}
