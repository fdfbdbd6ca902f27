/** A process that waits for one of two permits, says when it believes to hold it, and shows that it is awake. */
import { createLocks } from '../../../src/index.js'
import { sqlite } from '../../../src/stores/sqlite/index.js'

const locks = createLocks(sqlite(process.argv[2] as string))
const send = (message: unknown): void => void process.send?.(message as never)
process.on('disconnect', () => process.exit())
setInterval(() => send('awake'), 20)
const lock = await locks.semaphore('s', 2).acquire({ wait: '1m', ttl: '30s' })
send({ token: String(lock.fencingToken), isHeld: lock.isHeld })
