import { subscribe, type TracingChannelSubscribers, tracingChannel, unsubscribe } from 'node:diagnostics_channel'
import type { ChannelMessages } from '../core/tracing.js'

type TracedName = 'leasehold:acquire' | 'leasehold:hold'
type PlainName = Exclude<keyof ChannelMessages, TracedName>

/** Subscriptions to channels of leasehold, which end together. */
export class ChannelSubscriptions {
  readonly #ends: (() => void)[] = []

  on<N extends PlainName>(name: N, listener: (message: ChannelMessages[N]) => void): void {
    const untyped = listener as (message: unknown) => void
    subscribe(name, untyped)
    this.#ends.push(() => unsubscribe(name, untyped))
  }

  /**
   * `begin` with the first event of a trace, and `end` with what it returned. That is kept on the message: a WeakMap with a key
   * per lock keeps the garbage collector busier than all the rest. What began before is not ended.
   */
  trace<N extends TracedName, T>(
    name: N,
    begin: (trace: ChannelMessages[N]) => T,
    end: (trace: ChannelMessages[N], begun: T) => void,
  ): void {
    type Marked = ChannelMessages[N] & { [mark: symbol]: T | undefined }
    const mark = Symbol(name)
    const nothing = (): void => {}
    const subscribers: TracingChannelSubscribers<Marked> = {
      start: (trace) => void ((trace as { [mark: symbol]: T })[mark] = begin(trace)),
      end: nothing,
      asyncStart: (trace) => {
        const begun = trace[mark]
        if (begun !== undefined) end(trace, begun)
      },
      asyncEnd: nothing,
      error: nothing,
    }
    const traced = tracingChannel<unknown, Marked>(name)
    traced.subscribe(subscribers)
    this.#ends.push(() => traced.unsubscribe(subscribers))
  }

  add(end: () => void): void {
    this.#ends.push(end)
  }

  end(): void {
    for (const end of this.#ends.splice(0)) end()
  }
}
