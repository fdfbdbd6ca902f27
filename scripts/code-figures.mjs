// npm run figures: what a newcomer has to walk through. Files, lines, cycles of imports, type names with two meanings,
// and what one uncontended withLock passes on memory and on Redis (V8's precise coverage of the sources, without node_modules).
// `npm run figures -- --json` prints the same as JSON; `--without-redis` leaves the server out.
import { spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, relative, sep } from 'node:path'
import { fileURLToPath } from 'node:url'
import { embed } from './embed.mjs'
import { cyclesIn, homonymsIn, importGraph, sourcesIn } from './source-graph.mjs'

const ROOT = fileURLToPath(new URL('..', import.meta.url))
const SRC = join(ROOT, 'src')

/** Runs one warm withLock under precise coverage in a process of its own. */
function walked(kind) {
  const folder = mkdtempSync(join(tmpdir(), 'leasehold-figures-'))
  const program = join(ROOT, `.figures-${process.pid}-${kind}.mts`)
  try {
    writeFileSync(program, walkProgram(kind, join(folder, 'walk.json')))
    const { status, stderr } = spawnSync(process.execPath, ['--import', 'tsx', program], {
      cwd: ROOT,
      encoding: 'utf8',
    })
    if (status !== 0) throw new Error(`withLock on ${kind} could not be walked: ${stderr}`)
    const passed = JSON.parse(readFileSync(join(folder, 'walk.json'), 'utf8'))
    const files = new Set(passed.map(({ file }) => relative(SRC, file).split(sep).join('/')))
    return { files: files.size, functions: passed.length, list: [...files].sort() }
  } finally {
    rmSync(folder, { recursive: true, force: true })
    rmSync(program, { force: true })
  }
}

function walkProgram(kind, output) {
  const open =
    kind === 'memory'
      ? `import { createLocks, memory } from './src/index.js'
const store = memory()
const done = async () => {}`
      : `import { Redis } from 'ioredis'
import { createLocks } from './src/index.js'
import { redis } from './src/stores/redis/index.js'
import { startRedis } from './testbed/servers/index.js'
const server = await startRedis()
const client = new Redis({ port: server.port })
const store = redis(client)
const done = async () => { await store.close(); client.disconnect(); await server.stop() }`
  return `import { writeFileSync } from 'node:fs'
import { Session } from 'node:inspector/promises'
import { fileURLToPath } from 'node:url'
${open}
const locks = createLocks(store)
// Warm: scripts are loaded, connections open, and the batcher knows that this caller is alone.
for (let i = 0; i < 20; i++) await locks.withLock('warm-' + i, async () => {})
const session = new Session()
session.connect()
await session.post('Profiler.enable')
await session.post('Profiler.startPreciseCoverage', { callCount: true, detailed: false })
await session.post('Profiler.takePreciseCoverage')
await locks.withLock('walked', async () => {})
const { result } = await session.post('Profiler.takePreciseCoverage')
const passed = result
  .filter(({ url }) => url.startsWith('file:') && fileURLToPath(url.split('?')[0]).startsWith(${JSON.stringify(SRC + sep)}))
  .flatMap(({ url, functions }) =>
    functions
      .filter(({ ranges, functionName }) => ranges[0].count > 0 && !functionName.startsWith('__'))
      .map(({ functionName, ranges }) => ({ file: fileURLToPath(url.split('?')[0]), functionName, at: ranges[0].startOffset })),
  )
writeFileSync(${JSON.stringify(output)}, JSON.stringify(passed))
await locks.close()
await done()
process.exit(0)
`
}

function figures() {
  const files = sourcesIn(SRC)
  const graph = importGraph(files)
  const lines = files.map(({ file, text }) => ({ file, lines: text.split('\n').length - 1 }))
  const sorted = lines.toSorted((a, b) => a.lines - b.lines)
  const importers = new Map()
  for (const targets of graph.values())
    for (const target of targets) importers.set(target, (importers.get(target) ?? 0) + 1)
  return {
    files: files.length,
    lines: lines.reduce((sum, each) => sum + each.lines, 0),
    medianLines: sorted[Math.floor(sorted.length / 2)].lines,
    largest: sorted.at(-1),
    over300: sorted.filter((each) => each.lines > 300).map((each) => `${each.file} (${each.lines})`),
    cycles: cyclesIn(graph),
    homonyms: homonymsIn(files),
    filesWithOneImporter: [...importers.values()].filter((count) => count === 1).length,
    filesPerStore: perStore(files),
    withLockOnMemory: walked('memory'),
    ...(process.argv.includes('--without-redis') ? {} : { withLockOnRedis: walked('redis') }),
  }
}

function perStore(files) {
  const counts = {}
  for (const { file } of files) {
    const [, store] = /^stores\/([^/]+)\//.exec(file) ?? []
    if (store) counts[store] = (counts[store] ?? 0) + 1
  }
  return counts
}

embed()
const result = figures()
if (process.argv.includes('--json')) console.log(JSON.stringify(result, null, 2))
else {
  const { cycles: groups, homonyms: doubles, withLockOnMemory: memory, withLockOnRedis: redis } = result
  console.log(
    `files ${result.files}, lines ${result.lines}, median ${result.medianLines}, largest ${result.largest.file} (${result.largest.lines})`,
  )
  console.log(`over 300 lines: ${result.over300.join(', ') || 'none'}`)
  console.log(`cycles of imports, types included: ${groups.length}`)
  for (const group of groups) console.log(`  ${group.join(' · ')}`)
  console.log(`type names declared in several files: ${doubles.length}`)
  for (const { name, files: where } of doubles) console.log(`  ${name}: ${where.join(', ')}`)
  console.log(`files with one importer: ${result.filesWithOneImporter}`)
  console.log(
    `files per store: ${Object.entries(result.filesPerStore)
      .map(([store, count]) => `${store} ${count}`)
      .join(', ')}`,
  )
  console.log(`one warm withLock on memory passes ${memory.files} files, ${memory.functions} functions`)
  if (redis) console.log(`one warm withLock on Redis passes ${redis.files} files, ${redis.functions} functions`)
}
