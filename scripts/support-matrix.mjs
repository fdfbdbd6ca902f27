// npm run matrix: which store can do what, as the built stores say it of themselves. Written to
// - the places in the docs between `<!-- support matrix -->` (the table) or `<!-- stores: limiter -->` (one list) and `<!-- end -->`,
// - src/primitives/supported-by.ts, which error messages quote.
// Without --write it only compares, and fails if a place is out of date.
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { ensureBuilt } from './build.mjs'
import { ensurePackages } from './ensure.mjs'
import { ROOT } from './run.mjs'

const SOURCE = 'src/primitives/supported-by.ts'
const write = process.argv.includes('--write')
ensurePackages()
if (write) ensureBuilt()
// Not above: on a fresh clone the packages are there only now.
const { Redis } = await import('ioredis')
const { default: pg } = await import('pg')

const folder = mkdtempSync(join(tmpdir(), 'leasehold-matrix-'))
/** Clients that never connect: a store is asked what it is, and nothing else. */
const redisClient = () => new Redis({ lazyConnect: true })
const pool = () => new pg.Pool()

/** By the folder in src/stores, in the order of the columns. */
const STORES = {
  memory: { title: 'memory', make: (module) => module.memory() },
  sqlite: { title: 'SQLite', make: (module) => module.sqlite(join(folder, 'locks.db')) },
  redis: { title: 'Redis', make: (module) => module.redis(redisClient()) },
  redlock: { title: 'Redlock', make: (module) => module.redlock([redisClient(), redisClient(), redisClient()]) },
  postgres: { title: 'PostgreSQL table', make: (module) => module.postgres(pool()) },
  'postgres-advisory': { title: 'PostgreSQL advisory', make: (module) => module.advisory(pool()) },
  etcd: { title: 'etcd', make: (module) => module.etcd(['127.0.0.1:2379']) },
}

const yes = (condition, otherwise = '–') => (condition ? '✓' : otherwise)
/** `maxTtlMs` of a store that bounds its leases for a reason of its own, not of what a timer can count. */
const isShort = ({ maxTtlMs = Infinity }) => maxTtlMs < 86_400_000

/** Each row repeats the condition under which src/primitives refuses with an UnsupportedError. `key`: a name for lists. */
const ROWS = [
  { label: '`acquire`, `withLock`, shared locks, fencing tokens', cell: () => '✓' },
  {
    label: 'waiters are queued: none starves',
    cell: ({ features, blocks }) => yes(features.queue, blocks ? 'up to `maxSessions` - 1 waiters' : 'no queue'),
  },
  {
    key: 'readWrite',
    label: '`readWrite`',
    cell: ({ features }) => yes(features.queue, "with `starvation: 'accepted'`"),
  },
  {
    key: 'request',
    label: '`request` (Web Locks)',
    cell: ({ features }) => yes(features.queue, 'with `ifAvailable` or `steal`'),
  },
  { key: 'weights', label: '`semaphore`', cell: ({ features }) => yes(features.counting, 'without weights') },
  { key: 'together', label: '`withLocks` in one step', cell: ({ features }) => yes(features.atomic, 'one by one') },
  { key: 'election', label: '`election`', cell: ({ features, inspect }) => yes(features.values && inspect) },
  {
    key: 'runOnce',
    label: '`runOnce`',
    cell: (store) =>
      store.features.values && isShort(store) ? 'with `retain` up to `maxTtl`' : yes(store.features.values),
  },
  { key: 'limiter', label: '`limiter`', cell: ({ take }) => yes(take) },
  {
    key: 'schedule',
    label: '`schedule`',
    cell: ({ features, now, maxTtlMs }) =>
      features.values && !now ? "with `clock: 'local'`" : yes(features.values && maxTtlMs === undefined),
  },
  { label: '`holders`, `inspect`', cell: ({ holders, inspect }) => yes(holders && inspect) },
  { label: '`forceRelease`, `steal`', cell: ({ revoke }) => yes(revoke) },
  {
    label: 'a lease ends',
    cell: ({ expiry }) => (expiry === 'session' ? 'after its ttl or with its connection' : 'after its ttl'),
  },
]

const { exports: entries } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'))

async function openAll() {
  const folders = readdirSync(join(ROOT, 'src/stores'))
  const unknown = folders.filter((name) => !Object.hasOwn(STORES, name))
  if (unknown.length > 0) throw new Error(`scripts/support-matrix.mjs does not know how to make: ${unknown.join(', ')}`)
  const hidden = folders.filter((name) => name !== 'memory' && !entries[`./${name}`])
  if (hidden.length > 0) throw new Error(`package.json exports no entry for: ${hidden.join(', ')}`)
  return Promise.all(
    Object.entries(STORES).map(async ([name, { title, make }]) => {
      const file = name === 'memory' ? 'dist/index.js' : `dist/stores/${name}/index.js`
      return { title, store: make(await import(pathToFileURL(join(ROOT, file)).href)) }
    }),
  )
}

function table(opened) {
  const line = (cells) => `| ${cells.join(' | ')} |`
  return [
    line(['', ...opened.map(({ title }) => title)]),
    `|${'---|'.repeat(opened.length + 1)}`,
    ...ROWS.map(({ label, cell }) => line([label, ...opened.map(({ store }) => cell(store))])),
  ].join('\n')
}

/** Key of a row → the stores that do it without a condition. */
function supporters(opened) {
  const rows = ROWS.filter(({ key }) => key)
  return new Map(rows.map(({ key, cell }) => [key, opened.filter(({ store }) => cell(store) === '✓')]))
}

/** "the redis store cannot …: use memory or sqlite": messages call a store by its `name`, docs by its title. */
const names = (stores) =>
  list(
    stores.map(({ store }) => store.name),
    'or',
  )
const titles = (stores) =>
  list(
    stores.map(({ title }) => title),
    'and',
  )
const list = (words, last) => [words.slice(0, -1).join(', '), words.at(-1)].filter(Boolean).join(` ${last} `)

function source(lists) {
  const entries = [...lists].map(([key, stores]) => `  ${key}: '${names(stores)}',\n`)
  return `/**
 * The stores of this package that support a feature which others refuse, for error messages. Written by
 * \`npm run matrix\` from what the stores say of themselves: do not edit.
 */
export const SUPPORTED_BY = {
${entries.join('')}} as const
`
}

function filled(text, matrix, lists, file) {
  return text
    .replace(/(<!-- support matrix -->\n)[\s\S]*?(<!-- end -->)/g, (_, begin, end) => `${begin}${matrix}\n${end}`)
    .replace(/(<!-- stores: (\w+) -->)[\s\S]*?(<!-- end -->)/g, (_, begin, key, end) => {
      const stores = lists.get(key)
      if (!stores) throw new Error(`${file}: no row of the support matrix is called "${key}"`)
      return `${begin}${titles(stores)}${end}`
    })
}

const opened = await openAll()
const stale = []
function put(file, make) {
  const path = join(ROOT, file)
  const text = readFileSync(path, 'utf8')
  const wanted = make(text)
  if (wanted === text) return
  if (write) writeFileSync(path, wanted)
  else stale.push(file)
}
try {
  const matrix = table(opened)
  const lists = supporters(opened)
  const docs = readdirSync(join(ROOT, 'docs'), { recursive: true, encoding: 'utf8' }).filter((file) =>
    file.endsWith('.md'),
  )
  for (const file of ['README.md', ...docs.map((name) => join('docs', name))]) {
    put(file, (text) => filled(text, matrix, lists, file))
  }
  put(SOURCE, () => source(lists))
} finally {
  await Promise.all(opened.map(({ store }) => store.close()))
  rmSync(folder, { recursive: true, force: true })
}
if (stale.length > 0) {
  console.error(`Not what the stores say of themselves: ${stale.join(', ')}. Look at the change, then: npm run matrix`)
  process.exit(1)
}
// The clients were never connected, and nothing else is open.
process.exit(0)
