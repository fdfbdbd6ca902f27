/** A program as in the README: opens locks by a URL, uses them, closes them, and has nothing else to do. */
import { openLocks } from '../../src/index.js'

const [url = ''] = process.argv.slice(2)
const locks = await openLocks(url, { namespace: 'owner' })
await locks.withLock('a', async () => {
  // A waiter, so that the store opens its subscription too.
  const waiting = locks.acquire('a', { wait: 300 }).catch(() => 'busy')
  await waiting
})
await locks.close()
console.log(JSON.stringify({ closedAt: Date.now() }))
