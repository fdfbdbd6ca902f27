/**
 * Small mistakes, made in a copy of the sources by replacing text. Each has to be caught: an oracle that stays silent
 * about them has shown nothing about the original either.
 */
export interface Mutant {
  /** The scheme of the store's URL. */
  store: string
  name: string
  /** Below src/. */
  file: string
  find: string
  replace: string
  /** The campaign in which it shows. */
  campaign: 'plain' | 'shared' | 'kill' | 'freeze' | 'break'
}

export const MUTANTS: readonly Mutant[] = []
