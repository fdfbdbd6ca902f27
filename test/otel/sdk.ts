/** The real SDK of OpenTelemetry, which keeps what it is given. */
import * as api from '@opentelemetry/api'
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks'
import { PrometheusSerializer } from '@opentelemetry/exporter-prometheus'
import { type DataPoint, type Histogram, MeterProvider, MetricReader } from '@opentelemetry/sdk-metrics'
import {
  BasicTracerProvider,
  InMemorySpanExporter,
  type ReadableSpan,
  SimpleSpanProcessor,
} from '@opentelemetry/sdk-trace-base'
import { type InstrumentOptions, instrument } from '../../src/otel/index.js'

class PullReader extends MetricReader {
  protected override async onForceFlush(): Promise<void> {}
  protected override async onShutdown(): Promise<void> {}
}

export interface Point {
  attributes: Record<string, unknown>
  value: number | Histogram
}

export interface Sdk {
  spans(): ReadableSpan[]
  /** The points of one metric by its name; fails if there is no such metric. */
  points(metric: string): Promise<Point[]>
  /** As Prometheus would read it. */
  prometheus(): Promise<string>
  stop(): void
}

/** Reports to an SDK of its own until the test ends. */
export function startSdk(atEnd: (end: () => void) => void, options: InstrumentOptions = {}): Sdk {
  const exporter = new InMemorySpanExporter()
  const tracerProvider = new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] })
  const reader = new PullReader()
  const meterProvider = new MeterProvider({ readers: [reader] })
  const contextManager = new AsyncLocalStorageContextManager()
  api.context.setGlobalContextManager(contextManager.enable())
  const stop = instrument(api, { tracerProvider, meterProvider, ...options })
  atEnd(() => {
    stop()
    api.context.disable()
  })
  return {
    stop,
    spans: () => exporter.getFinishedSpans(),
    async points(metric) {
      const { resourceMetrics } = await reader.collect()
      const found = resourceMetrics.scopeMetrics.flatMap(({ metrics }) => metrics)
      const data = found.find(({ descriptor }) => descriptor.name === metric)
      if (!data) throw new Error(`no metric ${metric} among ${found.map(({ descriptor }) => descriptor.name)}`)
      return (data.dataPoints as DataPoint<number | Histogram>[]).map(({ attributes, value }) => ({
        attributes,
        value,
      }))
    },
    async prometheus() {
      const { resourceMetrics } = await reader.collect()
      return new PrometheusSerializer().serialize(resourceMetrics)
    },
  }
}

export { api }
