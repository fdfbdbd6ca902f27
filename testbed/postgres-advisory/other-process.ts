// Another process for the tests: hold <url> <name> <ttl> | wait <url> <name> <ttl> | leave <url> <name>
// | after <url> <name> <ttl>: holds the lock on a connection that held one of a minute before
// | both <url> <name>:<ttl>:<mode>,…: holds all of them, and prints which of them it lost
import pg from 'pg'
import { createLocks } from '../../src/index.js'
import { advisory } from '../../src/stores/postgres-advisory/index.js'

const [what, url = '', name = '', ttl = '30000'] = process.argv.slice(2)
const locks = createLocks(advisory(new pg.Pool({ connectionString: url })), { ttl: Number(ttl) })

if (what === 'leave') {
  // The process has nothing else to do: neither the lock nor its connection keeps it alive.
  await locks.acquire(name)
  console.log('held')
} else if (what === 'after') {
  await (await locks.acquire('before', { ttl: 60_000 })).release()
  await locks.acquire(name)
  console.log('held')
  setInterval(() => {}, 1_000)
} else if (what === 'both') {
  for (const each of name.split(',')) {
    const [one = '', lasts, mode = 'exclusive'] = each.split(':')
    const lock = await locks.acquire(one, { ttl: Number(lasts), mode: mode as 'shared', wait: 'forever' })
    lock.signal.addEventListener('abort', () => console.log(`lost ${one} of ${lasts}`))
    console.log(`held ${one} of ${lasts}`)
  }
  console.log('all held')
  setInterval(() => {}, 1_000)
} else {
  console.log('asks')
  const lock = await locks.acquire(name, { wait: 'forever' })
  lock.signal.addEventListener('abort', () => console.log(`lost ${lock.signal.reason.why}`))
  console.log(`held ${lock.fencingToken}`)
  setInterval(() => {}, 1_000)
}
