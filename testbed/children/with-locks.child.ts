// Calls withLocks over random subsets of names. The critical section of each name is a file that only one process can
// create.
import { closeSync, openSync, unlinkSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { openStore } from '../../src/open-store.js'
import { createLocks } from '../../src/index.js'

const [, , url, folder, calls, seed] = process.argv as [string, string, string, string, string, string]
const NAMES = 8

let state = Number(seed) + 1
/** Pseudo-random, 0 ≤ x < 1, the same for the same seed. */
function chance(): number {
  state = (state * 48_271) % 2_147_483_647
  return state / 2_147_483_647
}

function subset(): string[] {
  const names = Array.from({ length: NAMES }, (_, i) => `name-${i}`)
  const wanted = 1 + Math.floor(chance() * 4)
  return Array.from({ length: wanted }, () => names.splice(Math.floor(chance() * names.length), 1)[0] as string)
}

const store = await openStore(url)
const locks = createLocks(store, { wait: '120s', ttl: '60s' })
let overlaps = 0
let waited = 0

for (let i = 0; i < Number(calls); i++) {
  const names = subset()
  const asked = performance.now()
  await locks.withLocks(names, async (held) => {
    waited = Math.max(waited, performance.now() - asked)
    const inside: string[] = []
    for (const name of names) {
      try {
        const path = join(folder, name)
        closeSync(openSync(path, 'wx'))
        inside.push(path)
      } catch {
        overlaps++
      }
    }
    if (chance() < 0.3) await sleep(1)
    held.assertHeld()
    for (const path of inside) unlinkSync(path)
  })
}
process.stdout.write(`${JSON.stringify({ calls: Number(calls), overlaps, waited: Math.round(waited) })}\n`)
await locks.close()
await store.close()
