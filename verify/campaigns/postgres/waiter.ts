// A process of the campaign `postgres-waiters`: so many instances on `stores` store objects, all waiting for one name.
import { Pool } from 'pg'
import { createLocks } from '../../../src/locks.js'
import { postgres } from '../../../src/stores/postgres/index.js'

const [url = '', instances = '1', stores = '1', name = ''] = process.argv.slice(2)

const storeObjects = Array.from({ length: Number(stores) }, () => {
  const pool = new Pool({ connectionString: url, max: stores === '1' ? 4 : 1 })
  pool.on('error', () => {})
  return postgres(pool)
})

process.on('message', () => {
  let served = 0
  let waiting = 0
  for (let i = 0; i < Number(instances); i++) {
    const locks = createLocks(storeObjects[i % storeObjects.length] as (typeof storeObjects)[0], {
      ttl: '1m',
      wait: 'forever',
    })
    locks.on('error', ({ error }) => process.send?.({ error: String(error) }))
    void locks.acquire(name).then(async (lock) => {
      const at = Date.now()
      await lock.release()
      process.send?.({ token: String(lock.fencingToken), waitedMs: lock.waitedMs, at })
      served++
      if (served === Number(instances)) process.exit(0)
    })
    waiting++
  }
  process.send?.({ waiting })
})
process.send?.({ ready: true })
