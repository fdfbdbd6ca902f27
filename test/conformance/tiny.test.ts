/** The example of docs/writing-a-store.md, and the kit on a store that lacks everything that can be lacked. */
import { readFile } from 'node:fs/promises'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { conformance, coreCases, storeCases } from '../../src/testing/index.js'
import { type Place, tiny } from './tiny-store.js'

conformance({
  name: 'tiny',
  open: async () => {
    const place: Place = new Map()
    return { store: async () => tiny(place), close: async () => {} }
  },
  lacks: [
    'line',
    'counting',
    'atomic',
    'values',
    'watch',
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

test('docs/writing-a-store.md shows the very store that is tested here', async () => {
  const source = await readFile(new URL('tiny-store.ts', import.meta.url), 'utf8')
  const page = await readFile(new URL('../../docs/writing-a-store.md', import.meta.url), 'utf8')
  expect(page).toContain(source.replace('../../src/index.js', 'leasehold').trim())
})
