import type { Edit } from './bundle.js'
import { FINDINGS } from './mutants-findings.js'
import { MISTAKES } from './mutants-mistakes.js'
import { TENANCY_MUTANTS } from './mutants-tenancy.js'

/**
 * Small mistakes, made in the library by replacing text while it is bundled. Each has to be caught: a simulation that
 * stays silent about them has shown nothing about the original either.
 */
export interface Mutant {
  name: string
  /** The finding that it brings back, if it is one. */
  finding?: string
  /** Where it has to show, and as the violation of one of these rules. */
  workload: string
  shape?: string
  rules: readonly string[]
  edits: readonly Edit[]
}

export const MUTANTS: readonly Mutant[] = [...FINDINGS, ...MISTAKES, ...TENANCY_MUTANTS]
