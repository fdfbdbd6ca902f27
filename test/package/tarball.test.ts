import { execFileSync, spawnSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { ensureBuilt } from '../../scripts/build.mjs'

const ROOT = fileURLToPath(new URL('../..', import.meta.url))
const manifest = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')) as {
  exports: object
  scripts: object
  dependencies?: object
}
const entries = manifest.exports
let folder: string
let packed: { filename: string; size: number; unpackedSize: number }

/** A project that contains nothing but the packed package: no client, no dependency. */
beforeAll(() => {
  ensureBuilt()
  folder = mkdtempSync(join(tmpdir(), 'leasehold-tarball-'))
  const target = join(folder, 'node_modules/leasehold')
  mkdirSync(target, { recursive: true })
  const output = execFileSync('npm', ['pack', '--ignore-scripts', '--json', '--pack-destination', folder], {
    cwd: ROOT,
  })
  const list = JSON.parse(String(output)) as (typeof packed)[] | Record<string, typeof packed>
  packed = Object.values(list)[0] as typeof packed
  execFileSync('tar', ['-xzf', join(folder, packed.filename), '-C', target, '--strip-components=1'])
  writeFileSync(join(folder, 'package.json'), '{ "type": "module" }')
})

afterAll(() => rmSync(folder, { recursive: true, force: true }))

function node(code: string): string {
  return String(execFileSync(process.execPath, ['--input-type=module', '-e', code], { cwd: folder }))
}

describe('the published package', () => {
  test.each(Object.keys(entries).filter((entry) => entry !== './package.json'))(
    'loads %s without any client, by import and by require',
    (entry) => {
      const name = entry === '.' ? 'leasehold' : `leasehold/${entry.slice(2)}`
      expect(node(`console.log(Object.keys(await import('${name}')).length > 0)`)).toBe('true\n')
      const required = `const { createRequire } = await import('node:module')
        const built = createRequire(process.cwd() + '/x.js')('${name}')
        console.log(Object.keys(built).length === Object.keys(await import('${name}')).length)`
      expect(node(required)).toBe('true\n')
    },
  )

  test('stays below 1 MB packed and 3 MB unpacked, runs nothing when installed, and depends on nothing', () => {
    expect(packed.size).toBeLessThan(1_000_000)
    expect(packed.unpackedSize).toBeLessThan(3_000_000)
    const own = Object.keys(manifest.scripts)
    expect(own.filter((script) => /^(pre|post)?(install|prepare)$/.test(script))).toEqual([])
    expect(manifest.dependencies ?? {}).toEqual({})
  })

  test('locks, and schedules with its bundled dependencies', () => {
    const code = `import { createLocks, memory } from 'leasehold'
      const locks = createLocks(memory())
      const token = await locks.withLock('a', (lock) => typeof lock.fencingToken)
      const job = locks.schedule('tick', '* * * * *', async () => {})
      await job.stop()
      console.log(token)`
    expect(node(code)).toBe('bigint\n')
  })

  test('names the package to install when a client is missing', () => {
    const code = `import { openStore } from 'leasehold'
      await openStore('redis://127.0.0.1:1').catch((error) => console.log(error.message))
      await openStore('postgres://127.0.0.1:1').catch((error) => console.log(error.message))`
    const [redis, postgres] = node(code).split('\n')
    expect(redis).toMatch(/npm install (ioredis|redis)/)
    expect(postgres).toMatch(/npm install (pg|postgres)/)
  })

  test('has a command line that needs nothing but Node 22.13, and on an older one says what to type', () => {
    const bin = join(folder, 'node_modules/leasehold/dist/cli/main.js')
    const env = { ...process.env, XDG_STATE_HOME: join(folder, 'state'), LEASEHOLD_STORE: '' }
    const args = [bin, 'run', 'backup', '--', 'echo', 'a b']
    const { status, stdout, stderr } = spawnSync(process.execPath, args, { cwd: folder, env, encoding: 'utf8' })
    if (process.getBuiltinModule('node:sqlite')) return expect([status, stdout]).toEqual([0, 'a b\n'])
    expect(status).toBe(69)
    expect(stderr).toContain("npx -p leasehold -p @photostructure/sqlite leasehold run backup -- echo 'a b'")
  })

  test('has a command line that runs', () => {
    const bin = join(folder, 'node_modules/leasehold/dist/cli/main.js')
    expect(String(execFileSync(process.execPath, [bin, '--help']))).toContain('Usage: leasehold')
  })
})
