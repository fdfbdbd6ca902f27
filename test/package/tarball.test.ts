import { execFileSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { ensureBuilt } from '../../scripts/build.mjs'

const ROOT = fileURLToPath(new URL('../..', import.meta.url))
const { exports: entries } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')) as { exports: object }
let folder: string

/** A project with nothing but the packed package in it: no client, no dependency. */
beforeAll(() => {
  ensureBuilt()
  folder = mkdtempSync(join(tmpdir(), 'leasehold-tarball-'))
  const target = join(folder, 'node_modules/leasehold')
  mkdirSync(target, { recursive: true })
  const packed = execFileSync('npm', ['pack', '--ignore-scripts', '--json', '--pack-destination', folder], {
    cwd: ROOT,
  })
  const list = JSON.parse(String(packed)) as { filename: string }[] | Record<string, { filename: string }>
  const [{ filename }] = Object.values(list) as [{ filename: string }]
  execFileSync('tar', ['-xzf', join(folder, filename), '-C', target, '--strip-components=1'])
  writeFileSync(join(folder, 'package.json'), '{ "type": "module" }')
})

afterAll(() => rmSync(folder, { recursive: true, force: true }))

function node(code: string): string {
  return String(execFileSync(process.execPath, ['--input-type=module', '-e', code], { cwd: folder }))
}

describe('what would be published', () => {
  test.each(Object.keys(entries).filter((entry) => entry !== './package.json'))(
    '%s loads without any client',
    (entry) => {
      const name = entry === '.' ? 'leasehold' : `leasehold/${entry.slice(2)}`
      expect(node(`console.log(Object.keys(await import('${name}')).length > 0)`)).toBe('true\n')
    },
  )

  test('locks, and schedules with what is bundled', () => {
    const code = `import { createLocks, memory } from 'leasehold'
      const locks = createLocks(memory())
      const token = await locks.withLock('a', (lock) => typeof lock.fencingToken)
      const job = locks.schedule('tick', '* * * * *', async () => {})
      await job.stop()
      console.log(token)`
    expect(node(code)).toBe('bigint\n')
  })

  test('a missing client says which one to install', () => {
    const code = `import { openStore } from 'leasehold'
      await openStore('redis://127.0.0.1:1').catch((error) => console.log(error.message))
      await openStore('postgres://127.0.0.1:1').catch((error) => console.log(error.message))`
    const [redis, postgres] = node(code).split('\n')
    expect(redis).toMatch(/npm install (ioredis|redis)/)
    expect(postgres).toMatch(/npm install (pg|postgres)/)
  })

  test('the command line runs', () => {
    const bin = join(folder, 'node_modules/leasehold/dist/cli/main.js')
    expect(String(execFileSync(process.execPath, [bin, '--help']))).toContain('Usage: leasehold')
  })
})
