import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll } from 'vitest'
import { oracle } from './suite.js'

const folder = mkdtempSync(join(tmpdir(), 'leasehold-oracle-test-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))

oracle('sqlite', () => `sqlite:${join(folder, 'locks.db')}`, ['kill', 'shared', 'freeze'])
