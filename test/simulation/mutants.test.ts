import { readFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { MUTANTS } from '../../verify/simulation/mutants.js'

test('every edit of a mutant finds its text exactly once: `npm run mutants` would miss it otherwise', () => {
  const edits = MUTANTS.flatMap(({ name, edits: own }) => own.map((edit) => ({ name, ...edit })))
  const stale = edits.filter(({ file, find }) => {
    const source = readFileSync(new URL(`../../src/${file}`, import.meta.url), 'utf8')
    return source.split(find).length !== 2
  })
  expect(stale).toEqual([])
  expect(edits.length).toBeGreaterThan(50)
})
