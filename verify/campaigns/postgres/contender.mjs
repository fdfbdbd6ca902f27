// A process of the campaign `postgres-handoffs`: node contender.mjs <project> <url> <names>. Takes each name again and again, with the
// build in the `dist` of a project, which may be another checkout. Answers each message with how often it got one.
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'

const [project = '', url = '', names = '0'] = process.argv.slice(2)
const load = (file) => import(pathToFileURL(`${project}/dist/${file}`).href)
const { createLocks } = await load('index.js')
const { postgres } = await load('stores/postgres/index.js')
const { Pool } = createRequire(`${project}/package.json`)('pg')

const store = postgres(new Pool({ connectionString: url, max: 20 }).on('error', () => {}))
let handedOff = 0

async function contend(name) {
  const locks = createLocks(store, { ttl: '30s', wait: 'forever' })
  for (;;) {
    await locks.withLock(name, async () => {})
    handedOff++
  }
}

for (let i = 0; i < Number(names); i++) void contend(`contended ${i}`)
process.on('message', () => process.send(handedOff))
process.send('ready')
