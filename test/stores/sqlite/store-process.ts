/**
 * A real process with a store of its own on the given file, driven from the test: every method of the store can be
 * called, and the events of its watches are sent back.
 */
import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { program } from '../../../testbed/programs.js'
import type { LeaseId, StoreEvent } from '../../../src/store.js'

export interface ReceivedEvent {
  key: string
  event: StoreEvent
  /** On the monotonic clock of the machine, as `monotonicMs` reads it. */
  at: number
}

export interface Revoked {
  lease: LeaseId
  at: number
}

/** The same clock in all processes. */
export function monotonicMs(): number {
  return Number(process.hrtime.bigint()) / 1e6
}

export class StoreProcess {
  readonly received: ReceivedEvent[] = []
  readonly revoked: Revoked[] = []
  readonly #child: ChildProcess
  readonly #calls = new Map<number, { resolve: (value: never) => void; reject: (error: Error) => void }>()
  #lastCall = 0
  #onReceived: (() => void)[] = []

  private constructor(child: ChildProcess) {
    this.#child = child
    child.on(
      'message',
      (message: { id: number; result?: never; error?: string; received?: ReceivedEvent; revoked?: Revoked }) => {
        if (message.revoked) return void this.revoked.push(message.revoked)
        if (message.received) {
          this.received.push(message.received)
          for (const wake of this.#onReceived.splice(0)) wake()
          return
        }
        const call = this.#calls.get(message.id)
        this.#calls.delete(message.id)
        if (message.error !== undefined) call?.reject(new Error(message.error))
        else call?.resolve(message.result as never)
      },
    )
    child.on('exit', () => {
      for (const call of this.#calls.values()) call.reject(new Error('the process has ended'))
      this.#calls.clear()
    })
  }

  static async start(path: string): Promise<StoreProcess> {
    const file = program(new URL('store.child.ts', import.meta.url))
    const child = fork(file, [path], { execArgv: [], serialization: 'advanced' })
    await once(child, 'message')
    return new StoreProcess(child)
  }

  get pid(): number {
    return this.#child.pid as number
  }

  /** A method of the store, or one of the extra ones in store.child.ts. */
  call<T = never>(method: string, ...args: unknown[]): Promise<T> {
    const id = ++this.#lastCall
    this.#child.send({ id, method, args })
    return new Promise((resolve, reject) => this.#calls.set(id, { resolve: resolve as never, reject }))
  }

  async receives(wanted: (received: ReceivedEvent) => boolean, withinMs = 30_000): Promise<ReceivedEvent> {
    const deadline = performance.now() + withinMs
    for (;;) {
      const found = this.received.find(wanted)
      if (found) return found
      const left = deadline - performance.now()
      if (left <= 0)
        throw new Error(
          `not received within ${withinMs} ms; received ${JSON.stringify(this.received.map((h) => h.event.type))}`,
        )
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, left)
        this.#onReceived.push(() => {
          clearTimeout(timer)
          resolve()
        })
      })
    }
  }

  signal(name: NodeJS.Signals): void {
    this.#child.kill(name)
  }

  async kill(): Promise<void> {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return
    const ended = once(this.#child, 'exit')
    this.#child.kill('SIGKILL')
    await ended
  }
}
