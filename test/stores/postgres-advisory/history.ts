/** Many processes, some of them killed, and whether what they did could have happened to one lock at a time. */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { program } from '../../../scripts/support/programs.js'

/** The same seed, the same choices. */
export function chanceFrom(seed: number): () => number {
  let state = seed >>> 0
  return () => {
    state = (state + 0x6d2b79f5) >>> 0
    let mixed = Math.imul(state ^ (state >>> 15), state | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}

export interface Crowd {
  url: string
  processes: number
  acquisitions: number
  names: number
  kills: number
  seed: number
}

/** One stretch of time in which somebody believed to hold a name. */
interface Stretch {
  name: string
  token: bigint
  from: bigint
  /** Undefined: killed while holding; then it ended when it was killed. */
  to: bigint | undefined
}

export interface Verdict {
  grants: number
  killedHolding: number
  lost: number
  faults: string[]
}

/** Runs them all. A killed one is replaced by another, which does the rest. */
export async function crowd({ url, processes, acquisitions, names, kills, seed }: Crowd): Promise<Verdict> {
  const chance = chanceFrom(seed)
  const dir = mkdtempSync(join(tmpdir(), 'leasehold-history-'))
  const stretches: Stretch[] = []
  let killsLeft = kills
  let lost = 0
  let killedHolding = 0
  const one = async (worker: number): Promise<void> => {
    for (let left = acquisitions, life = 0; left > 0; life++) {
      const path = join(dir, `${worker}-${life}.log`)
      const child = start(url, path, names, left, seed * 1_000 + worker * 100 + life)
      const ended = once(child, 'exit') as Promise<[number | null]>
      const mayKill = life < 3 && killsLeft > 0 && chance() < 0.8
      const killedAt = mayKill ? await killSoon(child, path, ended, chance) : undefined
      if (killedAt !== undefined) killsLeft--
      const [code] = await ended
      if (code !== 0 && killedAt === undefined) throw new Error(`worker ${worker} ended with ${code}`)
      const seen = read(path, killedAt)
      lost += seen.lost
      if (seen.killedHolding) killedHolding++
      stretches.push(...seen.stretches)
      left = killedAt === undefined ? 0 : Math.max(left - seen.stretches.length, 0)
    }
  }
  try {
    await Promise.all(Array.from({ length: processes }, (_, worker) => one(worker)))
  } finally {
    rmSync(dir, { recursive: true, force: true })
  }
  return { grants: stretches.length, killedHolding, lost, faults: faultsOf(stretches) }
}

function start(url: string, path: string, names: number, acquisitions: number, seed: number): ChildProcess {
  const script = program(new URL('./worker.ts', import.meta.url))
  const args = [url, path, names, acquisitions, seed].map(String)
  return spawn(process.execPath, [script, ...args], { stdio: ['ignore', 'inherit', 'inherit'] })
}

/** Kills it some time after it began to work; when, unless it had ended before. */
async function killSoon(
  child: ChildProcess,
  path: string,
  ended: Promise<unknown>,
  chance: () => number,
): Promise<bigint | undefined> {
  const works = (): boolean => existsSync(path) && readFileSync(path).length > 0
  while (child.exitCode === null && !works()) await new Promise((resolve) => setTimeout(resolve, 10))
  await Promise.race([ended, new Promise((resolve) => setTimeout(resolve, chance() * 700))])
  if (child.exitCode !== null) return undefined
  const at = process.hrtime.bigint()
  child.kill('SIGKILL')
  return at
}

interface Seen {
  stretches: Stretch[]
  lost: number
  killedHolding: boolean
}

function read(path: string, killedAt: bigint | undefined): Seen {
  const stretches: Stretch[] = []
  let lost = 0
  if (!existsSync(path)) return { stretches, lost, killedHolding: false }
  // The last line may have been cut off.
  for (const line of readFileSync(path, 'utf8').split('\n').slice(0, -1)) {
    const [what, name = '', token = '', at = ''] = line.split(' ')
    if (what === 'acquired') stretches.push({ name, token: BigInt(token), from: BigInt(at), to: undefined })
    else (stretches.at(-1) as Stretch).to = BigInt(at)
    if (what === 'lost') lost++
  }
  const last = stretches.at(-1)
  const killedHolding = last !== undefined && last.to === undefined && killedAt !== undefined
  if (killedHolding) last.to = killedAt
  return { stretches, lost, killedHolding }
}

/** One holder after the other, with larger and larger tokens, each used once. */
export function faultsOf(stretches: readonly Stretch[]): string[] {
  const faults: string[] = []
  const tokens = new Set<bigint>()
  for (const { token, name } of stretches) {
    if (tokens.has(token)) faults.push(`token ${token} was given twice, the second time for ${name}`)
    tokens.add(token)
  }
  for (const name of new Set(stretches.map((stretch) => stretch.name))) {
    const turns = stretches.filter((stretch) => stretch.name === name).sort((a, b) => (a.from < b.from ? -1 : 1))
    for (const [i, turn] of turns.entries()) {
      const next = turns[i + 1]
      if (!next) break
      if (turn.to === undefined || next.from < turn.to)
        faults.push(`${name}: ${next.token} began while ${turn.token} held it`)
      if (next.token <= turn.token) faults.push(`${name}: token ${next.token} came after ${turn.token}`)
    }
  }
  return faults
}
