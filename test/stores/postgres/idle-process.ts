// Holds a lock and listens, and then has nothing else to do: it must end by itself.
import { Pool } from 'pg'
import { createLocks } from '../../../src/locks.js'
import { postgres } from '../../../src/stores/postgres/index.js'

const pool = new Pool({ connectionString: process.argv[2], allowExitOnIdle: true })
const store = postgres(pool)
const busy = setInterval(() => {}, 1_000)
const watch = store.watch?.('lock:idle', () => {})
const ready = await watch?.ready
const lock = await createLocks(store, { ttl: '1m' }).acquire(`idle-${process.pid}`)
clearInterval(busy)
process.exitCode = ready && lock.isHeld ? 0 : 1
