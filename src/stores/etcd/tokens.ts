/**
 * Tokens are revisions plus an offset: the microseconds of the moment at which the store was first used on this cluster. A move from
 * another store, whose tokens follow the clock, then does not make them smaller, and neither does a cluster that lost its data.
 *
 * @module
 */
import type { World } from '../../util/world.js'
import type { EtcdClient } from './client.js'
import type { EtcdKeys } from './keys.js'
import type { Comparison, KeyValue } from './messages.js'

export class TokenOffset {
  readonly #client: EtcdClient
  readonly #keys: EtcdKeys
  readonly #world: World
  #text: Buffer | undefined
  #loading: Promise<void> | undefined
  #value = 0n

  constructor(client: EtcdClient, keys: EtcdKeys, world: World) {
    this.#client = client
    this.#keys = keys
    this.#world = world
  }

  get value(): bigint {
    return this.#value
  }

  tokenOf(revision: number): bigint {
    return this.#value + BigInt(revision)
  }

  /** Read, or written by the first of all processes. Asked once. */
  ready(): Promise<void> | undefined {
    if (this.#text) return undefined
    this.#loading ??= this.#load().finally(() => {
      this.#loading = undefined
    })
    return this.#loading
  }

  /** In every transaction that grants: a cluster that was emptied meanwhile has another offset, and smaller revisions. */
  get unchanged(): Comparison {
    return { key: this.#keys.offset, is: '=', value: this.#text as Buffer }
  }

  /** Whether this is still the offset in use. If not, it is read again before the next transaction. */
  isCurrent(kv: KeyValue | undefined): boolean {
    if (kv && this.#text?.equals(kv.value)) return true
    this.#text = undefined
    return false
  }

  async #load(): Promise<void> {
    const { offset: key } = this.#keys
    const fresh = Buffer.from(String(Math.floor(this.#world.date() * 1_000)))
    const { answer } = await this.#client.txn({
      compare: [{ key, is: '=', create: 0 }],
      success: [{ put: { key, value: fresh, lease: 0n } }, { range: { key } }],
      failure: [{ range: { key } }],
    })
    const kv = answer.results.at(-1)?.range?.kvs[0]
    const text = kv?.value.toString() ?? ''
    if (!kv || !/^\d{1,18}$/.test(text)) throw new Error(`the key ${key.toString()} in etcd holds no number`)
    this.#value = BigInt(text)
    this.#text = Buffer.from(kv.value)
  }
}
