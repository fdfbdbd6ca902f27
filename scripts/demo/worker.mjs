// One of several processes that want the same lock. Tells its parent what happens, and does the work in between.
import { readFileSync, writeFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { createLocks } from '../../dist/index.js'
import { sqlite } from '../../dist/stores/sqlite/index.js'

const [, , database, counter] = process.argv
const locks = createLocks(sqlite(database), { ttl: '2s', wait: '30s' })
process.on('disconnect', () => process.exit())

for (;;) {
  await locks.withLock('till', async (lock) => {
    process.send({ holds: true, token: String(lock.fencingToken) })
    // Read, work, write: without the lock, increments would be lost.
    const before = Number(readFileSync(counter, 'utf8'))
    await sleep(200 + Math.random() * 300)
    writeFileSync(counter, String(before + 1))
    process.send({ holds: false })
  })
  await sleep(Math.random() * 200)
}
