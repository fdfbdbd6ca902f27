import { execFile } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, expect, test } from 'vitest'

const ROOT = fileURLToPath(new URL('../../../', import.meta.url))

let folder: string

beforeAll(() => {
  // Inside the project, so that it is compiled with its settings; not among the tests, which lack the types of
  // browsers.
  mkdirSync(join(ROOT, '.cache'), { recursive: true })
  folder = mkdtempSync(join(ROOT, '.cache/dom-'))
})

afterAll(() => rmSync(folder, { recursive: true, force: true }))

/** The output of the compiler for this code in a project with the types of browsers. */
function compile(name: string, code: string): Promise<string> {
  writeFileSync(join(folder, `${name}.ts`), `import { createLocks, memory } from '../../src/index.js'\n${code}`)
  const settings = {
    extends: join(ROOT, 'tsconfig.json'),
    compilerOptions: {
      lib: ['es2023', 'es2024.string', 'esnext.disposable', 'dom'],
      isolatedDeclarations: false,
      declaration: false,
    },
    include: [],
    files: [`${name}.ts`],
  }
  writeFileSync(join(folder, `${name}.json`), JSON.stringify(settings))
  const args = [join(ROOT, 'node_modules/ts7/bin/tsc'), '-p', join(folder, `${name}.json`), '--pretty', 'false']
  return new Promise((resolve) => {
    execFile(process.execPath, args, { cwd: folder }, (_error, stdout, stderr) => resolve(stdout + stderr))
  })
}

test('locks can be passed to code that takes the LockManager of browsers', async () => {
  const code = `
    export const manager: LockManager = createLocks(memory())
    export const request: LockManager['request'] = createLocks(memory()).request
    export const query: LockManager['query'] = createLocks(memory()).query

    /** As code that was written for browsers uses it. */
    export async function browserCode(locks: LockManager): Promise<string> {
      const plain: number = await locks.request('name', () => 1)
      const awaited: string = await locks.request('name', async (lock) => lock?.name + ' ' + lock?.mode)
      const { signal } = new AbortController()
      const none: boolean = await locks.request('name', { mode: 'shared', signal }, async (lock: Lock | null) => !lock)
      const options: LockOptions = { ifAvailable: true, steal: false }
      const mode: LockMode | undefined = await locks.request('name', options, (lock) => lock?.mode)
      const { held, pending }: LockManagerSnapshot = await locks.query()
      const info: LockInfo | undefined = held?.[0] ?? pending?.[0]
      return [plain, awaited, none, mode, info?.clientId].join()
    }
    void browserCode(createLocks(memory()))

    // Our own types say more: nothing in a snapshot is optional, and results keep their type.
    const locks = createLocks(memory())
    const { held } = await locks.query()
    const id: string = held.map(({ clientId }) => clientId.trim()).join()
    export const result: { id: string } = await locks.request('name', { mode: 'shared' }, async () => ({ id }))
    // @ts-expect-error there is no such mode
    await locks.request('name', { mode: 'other' }, () => result)
    // @ts-expect-error the lock may be null
    await locks.request('name', { ifAvailable: true }, (lock) => lock.name)
  `
  expect(await compile('assignable', code)).toBe('')
})

test('the compiler reports code for which that does not hold', async () => {
  const code = `
    const locks = createLocks(memory())
    export const manager: LockManager = { request: locks.request }
    export const wrong: LockManager['query'] = async () => ({ held: [{ mode: 'other' }] })
  `
  const complaints = await compile('wrong', code)
  expect(complaints).toMatch(/wrong\.ts\(4,\d+\): error TS2741: Property 'query' is missing/)
  expect(complaints).toMatch(/wrong\.ts\(5,\d+\): error TS2322/)
})
