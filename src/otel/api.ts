/**
 * What is used of `@opentelemetry/api`, by shape: no peer's types leak into ours, and any version that fits will do.
 *
 * @module
 */

/** Attributes of spans and metrics. */
export type OtelAttributes = Record<string, string | number | boolean | string[]>

export interface OtelSpan {
  setAttributes(attributes: OtelAttributes): unknown
  setStatus(status: { code: number; message?: string }): unknown
  recordException(error: Error): void
  addEvent(name: string, attributes?: OtelAttributes): unknown
  end(): void
}

export interface OtelTracer {
  startSpan(name: string, options?: { attributes?: OtelAttributes; startTime?: number }, context?: unknown): OtelSpan
}

export interface OtelCounter {
  add(value: number, attributes?: OtelAttributes): void
}

export interface OtelHistogram {
  record(value: number, attributes?: OtelAttributes): void
}

export interface OtelObserver {
  observe(value: number, attributes?: OtelAttributes): void
}

export interface OtelObservable {
  addCallback(callback: (observer: OtelObserver) => void): void
  removeCallback(callback: (observer: OtelObserver) => void): void
}

export interface OtelMetricOptions {
  description: string
  unit: string
  advice?: { explicitBucketBoundaries: number[] }
}

export interface OtelMeter {
  createCounter(name: string, options: OtelMetricOptions): OtelCounter
  createHistogram(name: string, options: OtelMetricOptions): OtelHistogram
  createObservableUpDownCounter(name: string, options: OtelMetricOptions): OtelObservable
}

export interface OtelTracerProvider {
  getTracer(name: string): OtelTracer
}

export interface OtelMeterProvider {
  getMeter(name: string): OtelMeter
}

/** `import * as api from '@opentelemetry/api'` is one. */
export interface OtelApi {
  readonly trace: OtelTracerProvider
  readonly metrics: OtelMeterProvider
  readonly context: { active(): unknown }
}
