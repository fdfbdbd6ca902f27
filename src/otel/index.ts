/**
 * Spans and metrics of all locks of a process, for OpenTelemetry.
 *
 * @module
 */
import { InvalidOptionError } from '../errors.js'
import { flagFrom } from '../core/options.js'
import { knownOptions } from '../util/options.js'
import { AttributesOf } from './attributes.js'
import type { OtelApi, OtelMeterProvider, OtelTracerProvider } from './api.js'
import { recordMetrics } from './metrics.js'
import { Spans } from './spans.js'
import { ChannelSubscriptions } from './subscriptions.js'

export type {
  OtelApi,
  OtelAttributes,
  OtelCounter,
  OtelHistogram,
  OtelMeter,
  OtelMeterProvider,
  OtelMetricOptions,
  OtelObservable,
  OtelObserver,
  OtelSpan,
  OtelTracer,
  OtelTracerProvider,
} from './api.js'

export interface InstrumentOptions {
  /** Default true. */
  spans?: boolean | undefined
  /** Default true. */
  metrics?: boolean | undefined
  /** Lock names as attributes. Default false: a backend keeps a series for each name that it has ever seen. */
  lockNames?: boolean | undefined
  /** Default: the global one of the API. */
  tracerProvider?: OtelTracerProvider | undefined
  /** Default: the global one of the API. */
  meterProvider?: OtelMeterProvider | undefined
}

const OPTIONS: readonly string[] = ['spans', 'metrics', 'lockNames', 'tracerProvider', 'meterProvider']

/** As OpenTelemetry names what reports: after the library. */
const SCOPE = 'leasehold'

/**
 * Reports all locks of this process, whichever instance or copy of leasehold holds them, until the returned function is
 * called. Call it once, after the SDK has registered its providers.
 *
 * @example
 * ```ts
 * import * as api from '@opentelemetry/api'
 * import { instrument } from 'leasehold/otel'
 *
 * const stop = instrument(api)
 * ```
 */
export function instrument(api: OtelApi, options: InstrumentOptions = {}): () => void {
  if (typeof api?.trace?.getTracer !== 'function' || typeof api?.metrics?.getMeter !== 'function') {
    throw new InvalidOptionError('api', api, "the API of OpenTelemetry: import * as api from '@opentelemetry/api'")
  }
  const known = knownOptions(options, OPTIONS)
  const attributesOf = new AttributesOf(flagFrom('lockNames', known.lockNames ?? false))
  const wantsSpans = flagFrom('spans', known.spans ?? true)
  const wantsMetrics = flagFrom('metrics', known.metrics ?? true)
  const { tracerProvider = api.trace, meterProvider = api.metrics } = known
  const subscriptions = new ChannelSubscriptions()
  if (wantsSpans) new Spans(tracerProvider.getTracer(SCOPE), api.context, attributesOf).record(subscriptions)
  if (wantsMetrics) recordMetrics(meterProvider.getMeter(SCOPE), subscriptions, attributesOf)
  return () => subscriptions.end()
}
