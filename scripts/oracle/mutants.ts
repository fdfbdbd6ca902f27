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

const sqlite: readonly Mutant[] = [
  {
    store: 'sqlite',
    name: 'release without an owner check',
    file: 'stores/sqlite/statements.ts',
    find: "endHolder: 'DELETE FROM holders WHERE key = ?1 AND owner = ?2 RETURNING announce'",
    replace: "endHolder: 'DELETE FROM holders WHERE key = ?1 AND ?2 = ?2 RETURNING announce'",
    campaign: 'freeze',
  },
  {
    store: 'sqlite',
    name: 'a lock is one of one, beside readers that are one of all',
    file: 'stores/sqlite/books.ts',
    find: 'if (!head || held + head.weight > head.capacity) return',
    replace:
      'if (!head || (held >= 2 ** 31 - 1 ? 1 : held) + (head.weight === head.capacity ? 1 : head.weight) > (head.weight === head.capacity ? 1 : head.capacity)) return',
    campaign: 'shared',
  },
  {
    store: 'sqlite',
    name: 'renewal creates',
    file: 'stores/sqlite/books.ts',
    find: 'if (!row) return GONE',
    replace:
      'if (!row) { this.#sql.endHolders.all(key); this.#grant(key, { owner, weight: 2 ** 31 - 1, capacity: 2 ** 31 - 1, announce: false }, ttlMs) }',
    campaign: 'break',
  },
  {
    store: 'sqlite',
    name: 'the fence is stored with the lock',
    file: 'stores/sqlite/books.ts',
    find: 'this.lastToken = Math.max(this.lastToken + 1, this.#wallMicros())',
    replace: 'this.lastToken = 1',
    campaign: 'plain',
  },
]

/** Mistakes that every store would show. */
const core: readonly Mutant[] = [
  {
    store: 'sqlite',
    name: 'isHeld trusts a timer instead of the clock',
    file: 'core/lease.ts',
    find: 'return !this.released && this.loss === undefined && this.engine.world.now(true) < this.deadline',
    replace: 'return !this.released && this.loss === undefined',
    campaign: 'freeze',
  },
]

export const MUTANTS: readonly Mutant[] = [...sqlite, ...core]
