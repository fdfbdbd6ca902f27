// npm run bench -- sqlite: the SQLite store beside proper-lockfile, in one run. Pairs of acquire and release in one
// process, and the time a lock takes from one process to another. Ratios; times mean little.
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import lockfile from 'proper-lockfile'
import { createLocks } from '../dist/index.js'
import { sqlite } from '../dist/stores/sqlite/index.js'
import { sideBySide } from './side-by-side.mjs'

const PAIRS = 300
const HANDOVERS = 300
const ALL = 2 ** 31 - 1

/** The same in all processes. */
const monotonicMs = () => Number(process.hrtime.bigint()) / 1e6
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

async function inOneProcess(home) {
  const store = sqlite(join(home, 'store.db'))
  const locks = createLocks(sqlite(join(home, 'locks.db')))
  const file = join(home, 'file')
  writeFileSync(file, '')
  let n = 0
  await sideBySide('acquire + release in one process, pairs a second', PAIRS, {
    'leasehold on SQLite': async () => {
      for (let i = 0; i < PAIRS; i++) await (await locks.acquire(`name-${i % 100}`)).release()
    },
    'the store by itself': async () => {
      for (let i = 0; i < PAIRS; i++) {
        const lease = { key: `lock:name-${i % 100}`, owner: `host:1:0190aaaa-bbbb-7ccc-8ddd-eeeeffff0000/${++n}` }
        await store.acquire([{ ...lease, weight: ALL, capacity: ALL, ttlMs: 30_000 }])
        await store.release([lease])
      }
    },
    'proper-lockfile': async () => {
      for (let i = 0; i < PAIRS; i++) await (await lockfile.lock(file))()
    },
  })
  await locks.close()
  await store.close()
}

/** Both processes always want the lock, so that every release is a hand-over. Notes when it was held and let go. */
async function takeTurns(contender, home) {
  const log = []
  const locks = createLocks(sqlite(join(home, 'turns.db')), { wait: 60_000 })
  const retries = { forever: true, minTimeout: 10, maxTimeout: 10 }
  for (let i = 0; i < HANDOVERS / 2; i++) {
    const ours = contender === 'leasehold on SQLite'
    const lock = ours ? await locks.acquire('turns') : await lockfile.lock(join(home, 'file'), { retries })
    const heldAt = monotonicMs()
    await pause(4)
    const letGoAt = monotonicMs()
    await (ours ? lock.release() : lock())
    log.push({ heldAt, letGoAt })
    // proper-lockfile has no line: whoever lets go would take it again at once.
    if (!ours) await pause(15)
  }
  await locks.close()
  return log
}

async function betweenProcesses(contender, home) {
  const children = [0, 1].map(() => fork(fileURLToPath(import.meta.url), [contender, home]))
  await Promise.all(children.map((child) => once(child, 'message')))
  for (const child of children) child.send('begin')
  const logs = await Promise.all(children.map(async (child) => (await once(child, 'message'))[0]))
  const turns = logs.flatMap((log, who) => log.map((turn) => ({ ...turn, who }))).sort((a, b) => a.heldAt - b.heldAt)
  const took = turns
    .slice(1)
    .flatMap((turn, i) => (turns[i].who === turn.who ? [] : [turn.heldAt - turns[i].letGoAt]))
    .sort((a, b) => a - b)
  const at = (share) => `${took[Math.floor((took.length - 1) * share)].toFixed(2)} ms`
  console.log(
    `  ${contender.padEnd(24)} median ${at(0.5)}, p99 ${at(0.99)}, worst ${at(1)} (${took.length} hand-overs)`,
  )
}

const [contender, home] = process.argv.slice(2)
if (contender !== undefined) {
  process.send('ready')
  await once(process, 'message')
  process.send(await takeTurns(contender, home), () => process.exit())
} else {
  const folder = mkdtempSync(join(tmpdir(), 'leasehold-bench-'))
  try {
    await inOneProcess(folder)
    console.log('from the release in one process to the lock held in another')
    for (const name of ['leasehold on SQLite', 'proper-lockfile, every 10 ms']) await betweenProcesses(name, folder)
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}
