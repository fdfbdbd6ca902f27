/**
 * What the scripts tell those who listen. common.lua says how it is written.
 *
 * @module
 */
import type { Lease } from '../../store.js'

/** A grant as it was pushed. A token of 0: the owner is first in the queue, there is room, and it may ask. */
export interface GrantMessage {
  owner: string
  token: bigint
  /** By the server's clock, in milliseconds. It may have lain in a buffer since it was sent. */
  endMs: number
}

const TOKEN_END = 16
const END_END = TOKEN_END + 13
/** Grants that nobody waits for yet, at most. */
const MOST_UNCLAIMED = 100

/** Where the name of the key begins, behind the owner. */
export function endOfOwner(message: string): number {
  return message.indexOf('\0', END_END)
}

/** What a message says, the name of the key excepted. Somebody waits for it: so in as few steps as can be. */
export function grantOf(message: string, end: number): GrantMessage {
  return {
    owner: message.slice(END_END, end),
    token: BigInt(message.slice(0, TOKEN_END)),
    endMs: Number(message.slice(TOKEN_END, END_END)),
  }
}

/** The leases that a message on the channel of revocations names; `keyOf` makes a key of a plain one. */
export function revokedOf(message: string, keyOf: (plain: string) => string): Lease[] {
  const [plain = '', ...rows] = message.split('\0')
  const key = keyOf(plain)
  return rows
    .filter((row) => row.length > TOKEN_END)
    .map((row) => {
      const token = BigInt(row.slice(0, TOKEN_END))
      return { key, owner: row.slice(TOKEN_END), ...(token > 0n ? { token } : {}) }
    })
}

/** Grants that came before anybody waited: they may have overtaken the answer that makes somebody wait. */
export class UnclaimedGrants {
  readonly #grants: { key: string; grant: GrantMessage }[] = []

  keep(key: string, grant: GrantMessage): void {
    this.#grants.push({ key, grant })
    if (this.#grants.length > MOST_UNCLAIMED) this.#grants.shift()
  }

  /** Handed out in a moment: a watch that begins now is not called before it has been returned. */
  claim(key: string, deliver: (grant: GrantMessage) => void): void {
    for (let i = this.#grants.length - 1; i >= 0; i--) {
      const entry = this.#grants[i]
      if (entry?.key !== key) continue
      this.#grants.splice(i, 1)
      queueMicrotask(() => deliver(entry.grant))
    }
  }
}
