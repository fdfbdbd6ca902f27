import type { AttributesOf, MetricAttributes } from './attributes.js'
import type { OtelAttributes, OtelMeter, OtelObserver } from './api.js'
import type { ChannelSubscriptions } from './subscriptions.js'

/** Seconds. From a store in memory to a wait of several minutes. */
const LOCK_BUCKETS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300]
/** Seconds. A call that takes longer than 10 s was given up long before. */
const CALL_BUCKETS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10]

const SECOND = 1_000

/** How much of something there is now, by attributes. */
class Gauge {
  readonly #counts = new Map<MetricAttributes, number>()

  change(by: 1 | -1, attributes: MetricAttributes): void {
    const count = (this.#counts.get(attributes) ?? 0) + by
    // Zero is worth showing, but there would be no end of names.
    if (count === 0 && attributes.named) this.#counts.delete(attributes)
    else this.#counts.set(attributes, count)
  }

  /** Attributes with a name are an object of their own for each lock, so equal ones are added up here. */
  readonly observe = (observer: OtelObserver): void => {
    const sums = new Map<string, { attributes: OtelAttributes; sum: number }>()
    for (const [{ plain: attributes }, count] of this.#counts) {
      const key = JSON.stringify(attributes)
      sums.set(key, { attributes, sum: (sums.get(key)?.sum ?? 0) + count })
    }
    for (const { attributes, sum } of sums.values()) observer.observe(sum, attributes)
  }
}

export function recordMetrics(meter: OtelMeter, subscriptions: ChannelSubscriptions, attributesOf: AttributesOf): void {
  recordWaiting(meter, subscriptions, attributesOf)
  recordLocks(meter, subscriptions, attributesOf)
  recordRenewals(meter, subscriptions, attributesOf)
  recordCalls(meter, subscriptions)
}

function recordWaiting(meter: OtelMeter, subscriptions: ChannelSubscriptions, attributesOf: AttributesOf): void {
  const waiting = meter.createObservableUpDownCounter('leasehold.lock.waiting', {
    description: 'Callers that are waiting for a lock now.',
    unit: '{request}',
  })
  const now = new Gauge()
  subscriptions.trace(
    'leasehold:acquire',
    (trace) => {
      const attributes = attributesOf.metric(trace)
      now.change(1, attributes)
      return attributes
    },
    (_, attributes) => now.change(-1, attributes),
  )
  waiting.addCallback(now.observe)
  subscriptions.add(() => waiting.removeCallback(now.observe))
}

/** What is granted, held and given up. */
function recordLocks(meter: OtelMeter, subscriptions: ChannelSubscriptions, attributesOf: AttributesOf): void {
  const advice = { explicitBucketBoundaries: LOCK_BUCKETS }
  const wait = meter.createHistogram('leasehold.lock.wait.duration', {
    description: 'How long callers waited until a lock was granted, or until they gave up.',
    unit: 's',
    advice,
  })
  const hold = meter.createHistogram('leasehold.lock.hold.duration', {
    description: 'How long locks were held.',
    unit: 's',
    advice,
  })
  const timeouts = meter.createCounter('leasehold.lock.timeouts', {
    description: 'Callers that gave up because a lock stayed busy.',
    unit: '{request}',
  })
  const held = meter.createObservableUpDownCounter('leasehold.lock.held', {
    description: 'Locks that this process holds now.',
    unit: '{lock}',
  })
  const now = new Gauge()
  subscriptions.trace(
    'leasehold:hold',
    (trace) => {
      const attributes = attributesOf.metric(trace)
      now.change(1, attributes)
      wait.record(trace.waitedMs / SECOND, attributes.with('granted'))
      return attributes
    },
    ({ heldMs = 0, error }, attributes) => {
      now.change(-1, attributes)
      hold.record(heldMs / SECOND, attributes.with(error ? 'lost' : 'released'))
    },
  )
  held.addCallback(now.observe)
  subscriptions.add(() => held.removeCallback(now.observe))
  subscriptions.on('leasehold:timeout', (facts) => {
    const attributes = attributesOf.metric(facts)
    timeouts.add(1, attributes.plain)
    wait.record(facts.waitedMs / SECOND, attributes.with('timeout'))
  })
}

function recordRenewals(meter: OtelMeter, subscriptions: ChannelSubscriptions, attributesOf: AttributesOf): void {
  const lost = meter.createCounter('leasehold.lock.lost', {
    description: 'Locks that were lost while they were held, by why.',
    unit: '{lock}',
  })
  const renewals = meter.createCounter('leasehold.lock.renewals', {
    description: 'Renewals of held locks.',
    unit: '{renewal}',
  })
  subscriptions.on('leasehold:lost', (facts) => {
    lost.add(1, { ...attributesOf.metric(facts).plain, 'leasehold.lost.why': facts.why })
  })
  subscriptions.on('leasehold:renewed', (facts) => renewals.add(1, attributesOf.metric(facts).with('renewed')))
  subscriptions.on('leasehold:error', (facts) => {
    if (facts.doing === 'renew') renewals.add(1, attributesOf.metric(facts).with('failed'))
  })
}

function recordCalls(meter: OtelMeter, subscriptions: ChannelSubscriptions): void {
  const calls = meter.createHistogram('leasehold.store.call.duration', {
    description: 'How long calls to the store took, each with one or more requests.',
    unit: 's',
    advice: { explicitBucketBoundaries: CALL_BUCKETS },
  })
  subscriptions.on('leasehold:call', ({ store, call, outcome, tookMs, error }) => {
    calls.record(tookMs / SECOND, {
      'leasehold.store.name': store,
      'leasehold.store.call': call,
      'leasehold.outcome': outcome,
      ...(error && { 'error.type': error.code }),
    })
  })
}
