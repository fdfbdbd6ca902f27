import { expect, test } from 'vitest'
import { checkEdits } from '../../verify/simulation/bundle.js'
import { MUTANTS } from '../../verify/simulation/mutants.js'

test.each(MUTANTS)('the text that a mutant changes is found once in the library: $name', ({ edits }) => {
  expect(() => checkEdits(edits)).not.toThrow()
})
