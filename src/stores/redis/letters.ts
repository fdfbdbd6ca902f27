/**
 * What the scripts tell those who listen, in the words of the contract. common.lua says how it is written.
 *
 * @module
 */
import type { StoreEvent } from '../../store.js'

export type Granted = Extract<StoreEvent, { type: 'granted' }>

const TOKEN_END = 16
const TTL_END = TOKEN_END + 12
/** Letters that nobody waits for yet, at most. */
const MOST_UNCLAIMED = 100

/** Where the name of the key begins, behind the owner. */
export function endOfOwner(letter: string): number {
  return letter.indexOf('\0', TTL_END)
}

/** What a letter says, the name of the key excepted. Somebody waits for it: so in as few steps as can be. */
export function grantOf(letter: string, end: number): Granted {
  return {
    type: 'granted',
    token: BigInt(letter.slice(0, TOKEN_END)),
    ttlMs: Number(letter.slice(TOKEN_END, TTL_END)),
    owner: letter.slice(TTL_END, end),
  }
}

/** `granted <letter>`, `revoked <owner>`, `changed` */
export function eventOf(text: string): StoreEvent | undefined {
  if (text.startsWith('granted ')) {
    const letter = text.slice('granted '.length)
    return grantOf(letter, endOfOwner(letter))
  }
  if (text === 'changed') return { type: 'changed' }
  return text.startsWith('revoked ') ? { type: 'revoked', owner: text.slice('revoked '.length) } : undefined
}

/** Letters that came before anybody waited: they may have overtaken the answer that makes somebody wait. */
export class Unclaimed {
  readonly #letters: { key: string; event: Granted }[] = []

  keep(key: string, event: Granted): void {
    this.#letters.push({ key, event })
    if (this.#letters.length > MOST_UNCLAIMED) this.#letters.shift()
  }

  /** Handed out in a moment: whoever begins to listen is not called before it has done so. */
  claim(key: string, listener: (event: StoreEvent) => void): void {
    for (let i = this.#letters.length - 1; i >= 0; i--) {
      const letter = this.#letters[i]
      if (letter?.key !== key) continue
      this.#letters.splice(i, 1)
      queueMicrotask(() => listener(letter.event))
    }
  }
}
