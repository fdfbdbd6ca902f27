/** A program whose server falls silent before it closes its locks. It has nothing else to do. */
import { once } from 'node:events'
import { openLocks } from '../../src/index.js'

const [url = ''] = process.argv.slice(2)
const locks = await openLocks(url, { ttl: '10s' })
await (await locks.acquire('before')).release()
console.log(JSON.stringify({ used: true }))
await once(process.stdin, 'data')
process.stdin.destroy()
// Requests without an answer, and connections that are opened to release what they may have been granted.
await locks.acquire('silent', { wait: '2s' }).catch(() => {})
await locks.close({ grace: '1s' })
console.log(JSON.stringify({ closedAt: Date.now() }))
