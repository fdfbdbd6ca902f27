/** The example of docs/writing-a-store.md, and the kit on a store that lacks every optional feature. */
import { readFile } from 'node:fs/promises'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { conformance, coreCases, storeCases } from '../../src/testing/index.js'
import { type TinyLeases, tiny } from './tiny-store.js'

conformance({
  name: 'tiny',
  open: async () => {
    const table: TinyLeases = new Map()
    return { store: async () => tiny(table), close: async () => {} }
  },
  lacks: [
    'queue',
    'counting',
    'atomic',
    'values',
    'watch',
    'watchGrants',
    'watchRevoked',
    'holders',
    'inspect',
    'revoke',
    'take',
    'now',
    'handoff',
  ],
  cases: [...storeCases(), ...coreCases()],
  describe,
  test: test.concurrent,
  beforeAll,
  afterAll,
})

test('docs/writing-a-store.md shows exactly the store that is tested here', async () => {
  const source = await readFile(new URL('tiny-store.ts', import.meta.url), 'utf8')
  const page = await readFile(new URL('../../docs/writing-a-store.md', import.meta.url), 'utf8')
  expect(page).toContain(source.replace('../../src/index.js', 'leasehold').trim())
})
