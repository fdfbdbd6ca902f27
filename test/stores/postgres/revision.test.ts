import { expect, test } from 'vitest'
import { fingerprint, REVISION, sources } from '../../../src/stores/postgres/migrate.js'

/** What each revision was made of. A released one never changes. */
const fingerprints: Record<number, string> = {
  1: '365d6e7969f0ac3d139174601db459ea',
}

test('the SQL that reaches the schema changes only together with its revision', () => {
  // Red: raise REVISION in src/stores/postgres/migrate.ts if the last one was released, and write the new fingerprint here.
  expect(fingerprint(sources)).toBe(fingerprints[REVISION])
})

test('comments and indentation are no change', () => {
  const renew = `-- another comment\n${sources.renew.replaceAll('\n  ', '\n      ')}`
  expect(fingerprint({ ...sources, renew, call: '', foreign: '', adopt: '' })).toBe(fingerprint(sources))
  expect(fingerprint({ ...sources, renew: sources.renew.replace('greatest', 'least') })).not.toBe(fingerprint(sources))
})
