/** The short form of `npm run newcomer`: three kinds of project, on the Node version that runs the tests. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { discard, installQuickly, pack, runProject } from '../../scripts/newcomer/install.js'
import { jestDefault, typescriptCommonjs, typescriptNodenext } from '../../scripts/newcomer/projects.js'
import { type RedisServer, startRedis } from '../../testbed/servers/index.js'

let server: RedisServer
let tarball: string
let folder: string

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'leasehold-newcomer-'))
  tarball = pack()
  server = await startRedis()
})

afterAll(async () => {
  await server?.stop()
  if (tarball) discard(tarball)
  rmSync(folder, { recursive: true, force: true })
})

test.each([typescriptNodenext, typescriptCommonjs, jestDefault])(
  '$name: the first screen of the README and a lock on Redis run',
  (project) => {
    const said = runProject(project, installQuickly(project, tarball, folder), server.url)
    expect(said).toMatch(/a lock on Redis/)
  },
  // Jest is downloaded from npm the first time, and kept in .cache.
  180_000,
)
