// Core, memory and SQLite, in real processes: what the first release has to show.
import { spawn } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { createLocks, InvalidOptionError, memory } from '../../src/index.js'
import { startChild } from '../../testbed/children.js'
import { program } from '../../testbed/programs.js'
import type { Proving } from './proving.js'

const HOLDER = new URL('../../testbed/children/holder.child.ts', import.meta.url)
const CLI = new URL('../../src/cli/main.ts', import.meta.url)

export default async function prove(p: Proving): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'leasehold-prove-'))
  try {
    await counter(p, folder)
    await killed(p, folder)
    await frozen(p, folder)
    await commandKilled(p, folder, 'SIGKILL')
    await commandKilled(p, folder, 'SIGSTOP')
    await manyWaiters(p)
    await badInput(p)
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

async function counter(p: Proving, folder: string): Promise<void> {
  const [count, tokens] = [join(folder, 'counter'), join(folder, 'tokens')]
  writeFileSync(count, '0')
  writeFileSync(tokens, '')
  const began = performance.now()
  const args = [join(folder, 'count.db'), 'count', '10000', count, tokens, '125']
  const ends = await Promise.all(Array.from({ length: 16 }, () => startChild(HOLDER, args).ended))
  const seen = readFileSync(tokens, 'utf8').trim().split('\n').map(BigInt)
  const inverted = seen.filter((token, i) => i > 0 && token <= (seen[i - 1] as bigint)).length
  const counted = Number(readFileSync(count, 'utf8'))
  const took = ((performance.now() - began) / 1_000).toFixed(1)
  p.check(
    '16 processes, 2,000 increments of an unprotected counter under withLock on one SQLite file',
    counted === 2_000 && seen.length === 2_000 && inverted === 0 && ends.every((end) => end === 0),
    `counter ${counted}, ${seen.length} tokens, ${inverted} not larger than the one before, ${took} s`,
  )
}

async function killed(p: Proving, folder: string): Promise<void> {
  const gaps: number[] = []
  for (let i = 0; i < 5; i++) {
    const path = join(folder, `kill-${i}.db`)
    const holder = startChild(HOLDER, [path, 'hold', '1000'])
    await holder.next()
    const next = startChild(HOLDER, [path, 'wait', '1000'])
    await next.next()
    await sleep(100)
    const at = performance.now()
    holder.kill('SIGKILL')
    await next.until((report) => report['holds'] === true)
    gaps.push(performance.now() - at)
    await next.ended
  }
  const worst = Math.max(...gaps)
  p.check(
    'kill -9 of a holder: the next one holds within ttl + 1 s',
    worst < 2_000,
    `worst of 5 at ttl 1 s: ${Math.round(worst)} ms`,
  )
}

async function frozen(p: Proving, folder: string): Promise<void> {
  const rounds = 60
  const child = startChild(HOLDER, [join(folder, 'frozen.db'), 'frozen', '300', String(rounds)])
  let truths = 0
  let rejections = 0
  for (let i = 0; i < rounds; i++) {
    await child.until((report) => report['holds'] === true)
    child.kill('SIGSTOP')
    await sleep(450)
    child.kill('SIGCONT')
    const { isHeld, aborted, throws } = await child.until((report) => 'isHeld' in report)
    if (!isHeld && aborted && throws) truths++
    const { outcome } = await child.until((report) => 'outcome' in report)
    if (outcome === 'lost') rejections++
  }
  await child.ended
  p.check(
    'SIGSTOP past the ttl, then SIGCONT in a busy process: the truth at the very first check',
    truths === rounds && rejections === rounds,
    `isHeld, assertHeld() and signal right in ${truths} of ${rounds}; withLock rejected with LockLostError in ${rejections}`,
  )
}

/** Two commands in turn that record when they are alive; the `leasehold run` of the first is killed or frozen. */
async function commandKilled(p: Proving, folder: string, signal: 'SIGKILL' | 'SIGSTOP'): Promise<void> {
  const store = `sqlite:${join(folder, `run-${signal}.db`)}`
  const run = (log: string): ReturnType<typeof spawn> => {
    const beat = `while true; do date +%s%N >> ${join(folder, log)}; sleep 0.02; done`
    const args = [program(CLI), 'run', 'job', '--ttl', '2s', '--wait', '30s', '--store', store]
    return spawn(process.execPath, [...args, '--', 'sh', '-c', beat], { stdio: 'ignore' })
  }
  const until = async (log: string): Promise<void> => {
    while (!existsSync(join(folder, log))) await sleep(20)
  }
  const beats = (log: string): bigint[] => readFileSync(join(folder, log), 'utf8').trim().split('\n').map(BigInt)
  const [one, two] = [`one-${signal}`, `two-${signal}`]
  const first = run(one)
  await until(one)
  const second = run(two)
  await sleep(1_500)
  first.kill(signal)
  await until(two)
  await sleep(300)
  const last = beats(one).at(-1) as bigint
  const next = beats(two)[0] as bigint
  p.check(
    `${signal} of \`leasehold run\` itself: its command is dead before the next holder's starts`,
    last < next,
    `dead for at least ${Number((next - last) / 1_000_000n)} ms when the next one began`,
  )
  first.kill('SIGKILL')
  const gone = new Promise((resolve) => second.once('exit', resolve))
  second.kill('SIGTERM')
  await gone
}

async function manyWaiters(p: Proving): Promise<void> {
  setFlagsFromString('--expose-gc')
  const gc = runInNewContext('gc') as () => void
  const locks = createLocks(memory(), { wait: 'forever' })
  const used = (): number => (gc(), process.memoryUsage().heapUsed / 1e6)
  await locks.withLock('a', () => {})
  const before = used()
  const first = await locks.acquire('a')
  const cancel = new AbortController()
  const order: number[] = []
  const cancelled = Array.from({ length: 1_000 }, () =>
    locks.acquire('a', { signal: cancel.signal }).catch(() => 'left'),
  )
  const served = Array.from({ length: 10_000 }, (_, i) => locks.withLock('a', () => void order.push(i)))
  const during = used()
  cancel.abort()
  const left = (await Promise.all(cancelled)).filter((outcome) => outcome === 'left').length
  await first.release()
  await Promise.all(served)
  const inOrder = order.length === 10_000 && order.every((n, i) => n === i)
  order.length = served.length = cancelled.length = 0
  await sleep(50)
  const after = used()
  p.check(
    '10,000 waiters on one name in one process',
    inOrder && left === 1_000 && after < before + 5,
    `served in order: ${inOrder}; ${left} of 1,000 cancelled ones left; heap ${before.toFixed(1)} → ${during.toFixed(1)} → ${after.toFixed(1)} MB`,
  )
  await locks.close()
}

async function badInput(p: Proving): Promise<void> {
  const locks = createLocks(memory())
  const attempts: [string, () => Promise<unknown>][] = [
    ['ttl 1', () => locks.acquire('a', { ttl: 1 })],
    ['ttl 0', () => locks.acquire('a', { ttl: 0 })],
    ["ttl '10 parsecs'", () => locks.acquire('a', { ttl: '10 parsecs' as '10s' })],
    ['a name of 10,000 characters', () => locks.acquire('x'.repeat(10_000))],
    ['a name with NUL', () => locks.acquire('a\0b')],
    ['an empty name', () => locks.acquire('')],
  ]
  for (const [what, attempt] of attempts) {
    const error = await attempt().catch((reason: unknown) => reason)
    const message = error instanceof Error ? error.message : 'granted'
    p.check(what, error instanceof InvalidOptionError, message.slice(0, 110))
  }
  const lock = await locks.acquire('a', { ttl: 10 })
  let renewals = 0
  locks.on('renewed', () => renewals++)
  await sleep(1_000)
  p.check(
    'the shortest ttl, 10 ms, is no hot loop',
    renewals < 600,
    `${renewals} renewals in 1 s, held: ${lock.isHeld}`,
  )
  await lock.release()
  await locks.close()
}
