import type { LockFacts } from '../core/events.js'
import type { AcquireTrace, HoldTrace } from '../core/tracing.js'
import { LeaseholdError, LockTimeoutError } from '../errors.js'
import type { AttributesOf } from './attributes.js'
import type { OtelApi, OtelSpan, OtelTracer } from './api.js'
import type { ChannelSubscriptions } from './subscriptions.js'

/** `SpanStatusCode.ERROR` */
const ERROR = 2

/** One acquisition, with the context of its caller. */
interface Acquiring {
  span: OtelSpan
  context: unknown
}

/** One lock that is held, by its holder. Its span is made when its acquisition has ended, whose context it shares. */
interface Holding {
  trace: HoldTrace
  since: number
  context: unknown
  span: OtelSpan | undefined
}

/** A span `acquire <kind>` for each acquisition, and one `hold <kind>` beside it for as long as the lock is held. */
export class Spans {
  readonly #tracer: OtelTracer
  readonly #context: OtelApi['context']
  readonly #attributesOf: AttributesOf
  readonly #holding = new Map<string, Holding>()

  constructor(tracer: OtelTracer, context: OtelApi['context'], attributesOf: AttributesOf) {
    this.#tracer = tracer
    this.#context = context
    this.#attributesOf = attributesOf
  }

  record(subscriptions: ChannelSubscriptions): void {
    subscriptions.trace(
      'leasehold:acquire',
      (trace) => this.#acquireBegan(trace),
      (trace, acquiring) => this.#acquireEnded(trace, acquiring),
    )
    subscriptions.trace(
      'leasehold:hold',
      (trace) => this.#holdBegan(trace),
      (trace, holding) => this.#holdEnded(trace, holding),
    )
    subscriptions.on('leasehold:atRisk', ({ holder, remainingMs }) => {
      const holding = this.#holding.get(holder)
      if (holding) this.#spanOf(holding).addEvent('at risk', { 'leasehold.remaining_ms': Math.round(remainingMs) })
    })
  }

  #acquireBegan(trace: AcquireTrace): Acquiring {
    const context = this.#context.active()
    const attributes = this.#attributesOf.span(trace)
    const span = this.#tracer.startSpan(`acquire ${trace.kind}`, { attributes }, context)
    return { span, context }
  }

  #acquireEnded(trace: AcquireTrace, { span, context }: Acquiring): void {
    const { result, error } = trace
    if (error !== undefined) fail(span, error)
    const granted = Array.isArray(result) ? (result as readonly LockFacts[]) : result ? [result as LockFacts] : []
    const [only, ...more] = granted
    if (only && more.length === 0) span.setAttributes({ 'leasehold.lock.fencing_token': String(only.fencingToken) })
    span.setAttributes({ 'leasehold.outcome': outcomeOf(trace) })
    span.end()
    for (const { holder } of granted) {
      const holding = this.#holding.get(holder)
      // Not with the time of the grant, which was a moment ago: the SDK measures finer from a beginning of its own.
      if (holding) holding.span ??= this.#startHold(holding.trace, context)
    }
  }

  #holdBegan(trace: HoldTrace): Holding {
    const holding = { trace, since: Date.now(), context: this.#context.active(), span: undefined }
    this.#holding.set(trace.holder, holding)
    return holding
  }

  #holdEnded({ holder, error }: HoldTrace, holding: Holding): void {
    this.#holding.delete(holder)
    const span = this.#spanOf(holding)
    if (error) {
      span.setAttributes({ 'leasehold.lost.why': error.why })
      fail(span, error)
    }
    span.setAttributes({ 'leasehold.outcome': error ? 'lost' : 'released' })
    span.end()
  }

  /** Made here if its acquisition has not ended yet, such as that of the first of several names. */
  #spanOf(holding: Holding): OtelSpan {
    holding.span ??= this.#startHold(holding.trace, holding.context, holding.since)
    return holding.span
  }

  #startHold(trace: HoldTrace, context: unknown, startTime?: number): OtelSpan {
    const token = { 'leasehold.lock.fencing_token': String(trace.fencingToken) }
    const attributes = { ...this.#attributesOf.span(trace), ...token }
    const options = startTime === undefined ? { attributes } : { attributes, startTime }
    return this.#tracer.startSpan(`hold ${trace.kind}`, options, context)
  }
}

function outcomeOf({ result, error }: AcquireTrace): string {
  if (error instanceof LockTimeoutError) return 'timeout'
  if (error !== undefined) return 'failed'
  return result ? 'granted' : 'busy'
}

function fail(span: OtelSpan, error: unknown): void {
  const known = error instanceof Error ? error : new Error(String(error))
  span.setStatus({ code: ERROR, message: known.message })
  span.setAttributes({ 'error.type': error instanceof LeaseholdError ? error.code : known.name })
  span.recordException(known)
}
