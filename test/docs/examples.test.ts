import { execFile } from 'node:child_process'
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { ensureBuilt } from '../../scripts/build.mjs'
import { type Server, startEtcd, startPostgres, startRedis } from '../../testbed/servers/index.js'

const ROOT = fileURLToPath(new URL('../..', import.meta.url))
const run = promisify(execFile)

interface Example {
  file: string
  line: number
  code: string
}

/** Every block of TypeScript in the docs that imports something. The others are fragments that explain. */
function examples(): Example[] {
  const docs = readdirSync(join(ROOT, 'docs'), { recursive: true, encoding: 'utf8' }).map((file) => join('docs', file))
  const files = ['README.md', ...docs].filter((file) => file.endsWith('.md'))
  return files.flatMap((file) => {
    const text = readFileSync(join(ROOT, file), 'utf8')
    return [...text.matchAll(/^```ts\n([\s\S]*?)^```/gm)].flatMap((match) => {
      const code = match[1] as string
      if (!/^import .* from 'leasehold/m.test(code) || /from '\./.test(code)) return []
      return [{ file, line: text.slice(0, match.index).split('\n').length + 1, code }]
    })
  })
}

let folder: string
let servers: Server[] = []
let addresses: [RegExp, string][] = []

beforeAll(async () => {
  // Inside the project, so that `leasehold` resolves to what would be published.
  mkdirSync(join(ROOT, '.cache'), { recursive: true })
  folder = mkdtempSync(join(ROOT, '.cache/docs-'))
  ensureBuilt()
  const redis = await startRedis()
  const postgres = await startPostgres()
  const nodes = await Promise.all([startRedis(), startRedis(), startRedis()])
  const etcd = await startEtcd({ nodes: 3 })
  servers = [redis, postgres, etcd, ...nodes]
  addresses = [
    [/redlock:\/\/[\w.:,-]+/g, `redlock://${nodes.map(({ port }) => `127.0.0.1:${port}`).join()}`],
    [/redis:\/\/(?:localhost|redis)-([123])(?::6379)?/g, 'redis://127.0.0.1:NODE$1'],
    [/redis:\/\/localhost(?::6379)?/g, redis.url],
    [/postgres:\/\/localhost[^\s'"]*/g, postgres.url],
    ...etcd.nodes.map(({ host }, i): [RegExp, string] => [new RegExp(`localhost-${i + 1}:2379`, 'g'), host]),
    ...nodes.map(({ port }, i): [RegExp, string] => [new RegExp(`NODE${i + 1}`, 'g'), String(port)]),
  ]
})

afterAll(async () => {
  rmSync(folder, { recursive: true, force: true })
  await Promise.all(servers.map((server) => server.stop()))
})

describe.concurrent('examples in the docs run as they are written', () => {
  const all = examples()
  const isTest = ({ code }: Example): boolean => code.includes("from 'vitest'")
  test('exist', () => {
    expect(all.length).toBeGreaterThan(6)
    expect(all.filter(isTest).length).toBeGreaterThan(2)
  })

  test('all compile, with every strict option', async () => {
    const sources = join(folder, 'compiled')
    mkdirSync(sources)
    for (const [i, { file, line, code }] of all.entries()) {
      writeFileSync(join(sources, `${i}-${file.replaceAll(/\W+/g, '-')}-${line}.ts`), code)
    }
    const compilerOptions = {
      module: 'nodenext',
      target: 'es2023',
      strict: true,
      noEmit: true,
      exactOptionalPropertyTypes: true,
      skipLibCheck: true,
      types: ['node'],
    }
    const lib = ['es2023', 'es2024.string', 'esnext.disposable']
    writeFileSync(join(sources, 'tsconfig.json'), JSON.stringify({ compilerOptions: { ...compilerOptions, lib } }))
    const compiler = join(ROOT, 'node_modules/ts7/bin/tsc')
    const said = await run(process.execPath, [compiler, '-p', sources]).catch((error: { stdout: string }) => error)
    expect(said.stdout).toBe('')
  })

  test('that are tests pass', async () => {
    const suite = join(folder, 'suite')
    mkdirSync(suite)
    for (const [i, { code }] of all.filter(isTest).entries()) writeFileSync(join(suite, `${i}.test.ts`), code)
    writeFileSync(join(suite, 'vitest.config.js'), "export default { test: { include: ['*.test.ts'], exclude: [] } }")
    const { VITEST: _, VITEST_WORKER_ID: __, VITEST_POOL_ID: ___, ...env } = process.env
    // The limits of a runner are for hangs: on a busy machine, loading what the example imports takes seconds.
    const args = ['run', '--root', suite, '--testTimeout', '60000', '--hookTimeout', '60000']
    await run(join(ROOT, 'node_modules/.bin/vitest'), args, { cwd: suite, env, timeout: 170_000 })
  }, 180_000)

  for (const [i, { file, line, code }] of all.entries()) {
    if (isTest({ file, line, code })) continue
    test(`${file}:${line}`, async () => {
      let text = code
      for (const [pattern, address] of addresses) text = text.replace(pattern, address)
      const script = join(folder, `example-${i}.ts`)
      // Examples do not close their connections; that is left to the reader.
      writeFileSync(script, `${text}\nprocess.exit()\n`)
      // An unhandled rejection, or an await that never ends, is a failure of the example.
      await run(process.execPath, ['--import', 'tsx', script], { cwd: folder, timeout: 110_000 })
    }, 120_000)
  }
})
