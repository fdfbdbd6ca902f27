import type { Adapter } from './adapter.js'

interface Emitter {
  on(event: string, listener: (...args: never[]) => void): unknown
  off(event: string, listener: (...args: never[]) => void): unknown
}

/** What is heard from a client that is not ours, and how to stop hearing it. */
export class Signals implements Pick<Adapter, 'onTurn' | 'onDoubt' | 'onShock' | 'detach'> {
  lastError: unknown
  readonly #turns = new Set<() => void>()
  readonly #doubts = new Set<() => void>()
  readonly #shocks = new Set<() => void>()
  #undo: (() => void)[] = []

  on(emitter: Emitter, event: string, listener: (...args: never[]) => void): void {
    emitter.on(event, listener)
    this.#undo.push(() => emitter.off(event, listener))
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
    for (const undo of this.#undo) undo()
    this.#undo = []
    this.#turns.clear()
    this.#doubts.clear()
    this.#shocks.clear()
  }
}
