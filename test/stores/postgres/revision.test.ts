import { expect, test } from 'vitest'
import { fingerprint, RELEASE, sqlFiles } from '../../../src/stores/postgres/schema.js'

/** What each revision was made of. A released one never changes. */
const fingerprints: Record<number, string> = {
  1: '54c0680445d10701f0bf19e8738b8254',
}

test('the SQL that reaches the schema changes only together with its revision', () => {
  // Red: raise the revision of RELEASE in src/stores/postgres/schema.ts if the last one was released, and write the new fingerprint here.
  expect(fingerprint(sqlFiles)).toBe(fingerprints[RELEASE.revision])
})

test('comments and indentation are no change', () => {
  const renew = `-- another comment\n${sqlFiles.renew.replaceAll('\n  ', '\n      ')}`
  expect(fingerprint({ ...sqlFiles, renew, call: '', foreign: '', adopt: '' })).toBe(fingerprint(sqlFiles))
  expect(fingerprint({ ...sqlFiles, renew: sqlFiles.renew.replace('greatest', 'least') })).not.toBe(
    fingerprint(sqlFiles),
  )
})
