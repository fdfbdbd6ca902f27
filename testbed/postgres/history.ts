import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { program } from '../programs.js'
import type { Library } from './fixture.js'

export interface Contest {
  /** One per process. */
  urls: string[]
  libraries: Library[]
  names: number
  /** Over all processes. */
  acquisitions: number
  /** Kill one, with SIGKILL, after about so many of them. */
  killEvery: number
  seed: number
  withinMs: number
}

export interface History {
  acquisitions: number
  kills: number
  /** Locks whose holders noticed in time that they had lost them. */
  lost: number
  /** What must not be: two at once, or a token that is not larger than the one before it. */
  violations: string[]
}

const SCRIPT = new URL('./contender.ts', import.meta.url)

/** Processes that want the same names, some of them killed, and what they wrote down. */
export async function contend(contest: Contest): Promise<History> {
  const dir = await mkdtemp(join(tmpdir(), 'leasehold-history-'))
  const children: (ChildProcess | undefined)[] = []
  let kills = 0
  const start = (i: number): void => {
    const args = [
      contest.urls[i],
      contest.libraries[i % contest.libraries.length],
      dir,
      contest.names,
      contest.seed + kills * 100 + i,
    ]
    children[i] = spawn(process.execPath, [program(SCRIPT), ...args.map(String)], {
      stdio: ['ignore', 'ignore', 'inherit'],
    })
  }
  try {
    for (const i of contest.urls.keys()) start(i)
    const deadline = performance.now() + contest.withinMs
    let nextKill = contest.killEvery
    for (;;) {
      await sleep(100)
      const history = judge(await readFile(join(dir, 'log'), 'utf8').catch(() => ''))
      if (history.acquisitions >= contest.acquisitions) return { ...history, kills }
      if (performance.now() > deadline)
        throw new Error(`only ${history.acquisitions} acquisitions within ${contest.withinMs} ms`)
      if (history.acquisitions >= nextKill) {
        const victim = kills % contest.urls.length
        await end(children[victim])
        kills++
        start(victim)
        nextKill = history.acquisitions + contest.killEvery * (0.5 + Math.random())
      }
    }
  } finally {
    await Promise.all(children.map(end))
    await rm(dir, { recursive: true, force: true })
  }
}

async function end(child: ChildProcess | undefined): Promise<void> {
  if (!child || child.exitCode !== null || child.signalCode !== null) return
  child.kill('SIGKILL')
  await once(child, 'exit')
}

export function judge(log: string): Omit<History, 'kills'> {
  const last = new Map<string, bigint>()
  const lost = new Set<string>()
  const met: { path: string; token: string; other: string }[] = []
  const violations: string[] = []
  let acquisitions = 0
  for (const line of log.split('\n')) {
    const [what, path = '', token = '0', other = ''] = line.split(' ')
    if (what === 'met') met.push({ path, token, other })
    else if (what === 'lost') lost.add(`${path} ${token}`)
    else if (what === 'in') {
      acquisitions++
      if (BigInt(token) <= (last.get(path) ?? 0n))
        violations.push(`${path}: token ${token} came after ${last.get(path)}`)
      last.set(path, BigInt(token))
    }
  }
  for (const { path, token, other } of met) {
    // Who was held up for longer than its lock lasted, and noticed, has done nothing wrong.
    if (!lost.has(`${path} ${other}`) && !lost.has(`${path} ${token}`))
      violations.push(`${path}: ${token} and ${other} at once`)
  }
  return { acquisitions, lost: lost.size, violations }
}
