import type { Adapter } from './adapter.js'

interface Emitter {
  on(event: string, listener: (...args: never[]) => void): unknown
  off(event: string, listener: (...args: never[]) => void): unknown
}

/** What is heard from a client that is not ours, and how to stop hearing it. */
export class Signals implements Pick<Adapter, 'onTurn' | 'onDoubt' | 'onShock' | 'rest' | 'attend' | 'detach'> {
  lastError: unknown
  readonly #turns = new Set<() => void>()
  readonly #doubts = new Set<() => void>()
  readonly #shocks = new Set<() => void>()
  #heard: { emitter: Emitter; event: string; listener: (...args: never[]) => void }[] = []
  #resting = false

  on(emitter: Emitter, event: string, listener: (...args: never[]) => void): void {
    this.#heard.push({ emitter, event, listener })
    if (!this.#resting) emitter.on(event, listener)
  }

  /** Takes every listener off the client until `attend()`: nobody uses the store at present. */
  rest(): void {
    if (this.#resting) return
    this.#resting = true
    for (const { emitter, event, listener } of this.#heard) emitter.off(event, listener)
  }

  /** Puts them back. */
  attend(): void {
    if (!this.#resting) return
    this.#resting = false
    for (const { emitter, event, listener } of this.#heard) emitter.on(event, listener)
  }

  /** Whenever it is ready again, nobody knows what happened meanwhile. */
  doubtWhenReadyAgain(emitter: Emitter, isReady: boolean): void {
    let wasReady = isReady
    this.on(emitter, 'ready', () => {
      if (wasReady) this.doubt()
      wasReady = true
    })
  }

  onTurn(listener: () => void): () => void {
    this.attend()
    this.#turns.add(listener)
    return () => this.#turns.delete(listener)
  }

  onDoubt(listener: () => void): () => void {
    this.#doubts.add(listener)
    return () => this.#doubts.delete(listener)
  }

  onShock(listener: () => void): () => void {
    this.#shocks.add(listener)
    return () => this.#shocks.delete(listener)
  }

  shock(): void {
    for (const listener of [...this.#shocks]) listener()
  }

  turn(): void {
    for (const listener of [...this.#turns]) listener()
  }

  doubt(): void {
    for (const listener of [...this.#doubts]) listener()
  }

  detach(): void {
    this.rest()
    this.#heard = []
    this.#turns.clear()
    this.#doubts.clear()
    this.#shocks.clear()
  }
}
