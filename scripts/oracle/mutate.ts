import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { ROOT, settle, translate } from '../support/programs.js'
import type { Mutant } from './mutants.js'

/** A copy of src/ with the mistake in it, also as JavaScript, removed again when `use` is through. */
export async function withMutant<T>(mutant: Mutant, use: (source: string) => Promise<T>): Promise<T> {
  const folder = mkdtempSync(join(tmpdir(), 'leasehold-mutant-'))
  try {
    cpSync(join(ROOT, 'src'), join(folder, 'src'), { recursive: true })
    settle(folder)
    const file = join(folder, 'src', mutant.file)
    const original = readFileSync(file, 'utf8')
    const places = original.split(mutant.find).length - 1
    // A mutant that changes nothing would be «missed», one that changes two places says little about either.
    if (places !== 1)
      throw new Error(`the mutant "${mutant.name}" finds its text ${places} times in src/${mutant.file}`)
    writeFileSync(
      file,
      original.replace(mutant.find, () => mutant.replace),
    )
    translate(join(folder, 'src'), join(folder, 'src'))
    return await use(join(folder, 'src'))
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}
