import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { ROOT, settle, translate } from '../../testbed/programs.js'
import type { OracleMutant } from './mutants.js'

/** Makes a copy of src/ with the defect, also as JavaScript. Removed when `use` has settled. */
export async function withMutant<T>(mutant: OracleMutant, use: (source: string) => Promise<T>): Promise<T> {
  const folder = mkdtempSync(join(tmpdir(), 'leasehold-mutant-'))
  try {
    cpSync(join(ROOT, 'src'), join(folder, 'src'), { recursive: true })
    settle(folder)
    const file = join(folder, 'src', mutant.file)
    const original = readFileSync(file, 'utf8')
    const matches = original.split(mutant.find).length - 1
    // A mutant that changes nothing would count as "not caught", and one that changes two places says little about
    // either.
    if (matches !== 1)
      throw new Error(`the mutant "${mutant.name}" finds its text ${matches} times in src/${mutant.file}`)
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
