/** Runs many processes, some of which are killed, and judges whether each lock had one holder at a time. */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { program } from '../programs.js'
import { randomFrom } from '../random.js'

export interface HistoryOptions {
  url: string
  processes: number
  acquisitions: number
  names: number
  kills: number
  seed: number
}

/** A span of time in which a process believed to hold a name. */
interface HeldSpan {
  name: string
  token: bigint
  from: bigint
  /** Undefined while it is not known: a process that was killed while holding has no line for the end. */
  to: bigint | undefined
}

export interface HistoryVerdict {
  grants: number
  killedHolding: number
  lost: number
  faults: string[]
}

/** Runs all processes. A killed one is replaced by another, which does the rest. */
export async function runHistory({
  url,
  processes,
  acquisitions,
  names,
  kills,
  seed,
}: HistoryOptions): Promise<HistoryVerdict> {
  const random = randomFrom(seed)
  const dir = mkdtempSync(join(tmpdir(), 'leasehold-history-'))
  const spans: HeldSpan[] = []
  let killsLeft = kills
  let lost = 0
  let killedHolding = 0
  const one = async (worker: number): Promise<void> => {
    for (let left = acquisitions, life = 0; left > 0; life++) {
      const path = join(dir, `${worker}-${life}.log`)
      const child = start(url, path, names, left, seed * 1_000 + worker * 100 + life)
      const ended = once(child, 'exit') as Promise<[number | null]>
      const mayKill = life < 3 && killsLeft > 0 && random() < 0.8
      const killedAt = mayKill ? await killSoon(child, path, ended, random) : undefined
      if (killedAt !== undefined) killsLeft--
      const [code] = await ended
      if (code !== 0 && killedAt === undefined) throw new Error(`worker ${worker} ended with ${code}`)
      const log = readLog(path, killedAt)
      lost += log.lost
      if (log.killedHolding) killedHolding++
      spans.push(...log.spans)
      left = killedAt === undefined ? 0 : Math.max(left - log.spans.length, 0)
    }
  }
  try {
    await Promise.all(Array.from({ length: processes }, (_, worker) => one(worker)))
  } finally {
    rmSync(dir, { recursive: true, force: true })
  }
  return { grants: spans.length, killedHolding, lost, faults: faultsOf(spans) }
}

function start(url: string, path: string, names: number, acquisitions: number, seed: number): ChildProcess {
  const script = program(new URL('./worker.ts', import.meta.url))
  const args = [url, path, names, acquisitions, seed].map(String)
  return spawn(process.execPath, [script, ...args], { stdio: ['ignore', 'inherit', 'inherit'] })
}

/** Kills a process some time after it began to work. Resolves with when; undefined if it had ended before. */
async function killSoon(
  child: ChildProcess,
  path: string,
  ended: Promise<unknown>,
  random: () => number,
): Promise<bigint | undefined> {
  const works = (): boolean => existsSync(path) && readFileSync(path).length > 0
  while (child.exitCode === null && !works()) await new Promise((resolve) => setTimeout(resolve, 10))
  await Promise.race([ended, new Promise((resolve) => setTimeout(resolve, random() * 700))])
  if (child.exitCode !== null) return undefined
  const at = process.hrtime.bigint()
  child.kill('SIGKILL')
  return at
}

interface WorkerLog {
  spans: HeldSpan[]
  lost: number
  killedHolding: boolean
}

function readLog(path: string, killedAt: bigint | undefined): WorkerLog {
  const spans: HeldSpan[] = []
  let lost = 0
  if (!existsSync(path)) return { spans, lost, killedHolding: false }
  // The kill may have cut off the last line.
  for (const line of readFileSync(path, 'utf8').split('\n').slice(0, -1)) {
    const [what, name = '', token = '', at = ''] = line.split(' ')
    if (what === 'acquired') spans.push({ name, token: BigInt(token), from: BigInt(at), to: undefined })
    else (spans.at(-1) as HeldSpan).to = BigInt(at)
    if (what === 'lost') lost++
  }
  const last = spans.at(-1)
  const killedHolding = last !== undefined && last.to === undefined && killedAt !== undefined
  if (killedHolding) last.to = killedAt
  return { spans, lost, killedHolding }
}

/** Faults against: one holder after the other, with larger and larger tokens, each used once. */
export function faultsOf(spans: readonly HeldSpan[]): string[] {
  const faults: string[] = []
  const tokens = new Set<bigint>()
  for (const { token, name } of spans) {
    if (tokens.has(token)) faults.push(`token ${token} was given twice, the second time for ${name}`)
    tokens.add(token)
  }
  for (const name of new Set(spans.map((span) => span.name))) {
    const turns = spans.filter((span) => span.name === name).sort((a, b) => (a.from < b.from ? -1 : 1))
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
