// One of the processes of history.ts: worker <url> <log> <names> <acquisitions> <seed>. Each line is on disk before the next
// step happens, so that the process can be killed at any moment.
import { openSync, writeSync } from 'node:fs'
import pg from 'pg'
import { createLocks } from '../../src/index.js'
import { advisory } from '../../src/stores/postgres-advisory/index.js'
import { randomFrom } from '../random.js'

const [url = '', path = '', names = '', acquisitions = '', seed = ''] = process.argv.slice(2)
const log = openSync(path, 'a')
const random = randomFrom(Number(seed))
const store = advisory(new pg.Pool({ connectionString: url }))
const locks = createLocks(store, { wait: '60s', ttl: '5s' })

function record(what: string, name: string, token: bigint): void {
  // The kernel's monotonic clock is the same for all processes.
  writeSync(log, `${what} ${name} ${token} ${process.hrtime.bigint()}\n`)
}

for (let i = 0; i < Number(acquisitions); i++) {
  const name = `n${Math.floor(random() * Number(names))}`
  const lock = await locks.acquire(name)
  record('acquired', name, lock.fencingToken)
  if (random() < 0.5) await new Promise((resolve) => setTimeout(resolve, random() * 4))
  record(lock.isHeld ? 'released' : 'lost', name, lock.fencingToken)
  await lock.release()
}
await locks.close()
await store.close()
