// One of many: worker <url> <log> <names> <acquisitions> <seed>. What it did is on disk before the next thing happens, so
// that it can be killed at any moment.
import { openSync, writeSync } from 'node:fs'
import pg from 'pg'
import { createLocks } from '../../../src/index.js'
import { advisory } from '../../../src/stores/postgres-advisory/index.js'
import { chanceFrom } from './history.js'

const [url = '', path = '', names = '', acquisitions = '', seed = ''] = process.argv.slice(2)
const log = openSync(path, 'a')
const chance = chanceFrom(Number(seed))
const store = advisory(new pg.Pool({ connectionString: url }))
const locks = createLocks(store, { wait: '60s', ttl: '5s' })

function note(what: string, name: string, token: bigint): void {
  // The kernel's monotonic clock is the same for all processes.
  writeSync(log, `${what} ${name} ${token} ${process.hrtime.bigint()}\n`)
}

for (let i = 0; i < Number(acquisitions); i++) {
  const name = `n${Math.floor(chance() * Number(names))}`
  const lock = await locks.acquire(name)
  note('acquired', name, lock.fencingToken)
  if (chance() < 0.5) await new Promise((resolve) => setTimeout(resolve, chance() * 4))
  note(lock.isHeld ? 'released' : 'lost', name, lock.fencingToken)
  await lock.release()
}
await locks.close()
await store.close()
