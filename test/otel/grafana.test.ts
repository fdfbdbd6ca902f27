/** The dashboard in the docs shows what the metrics are called, as the exporter for Prometheus of OpenTelemetry names them. */
import { readFileSync } from 'node:fs'
import { expect, onTestFinished, test } from 'vitest'
import { LockTimeoutError } from '../../src/index.js'
import { RemoteMemory } from '../core/remote-memory.js'
import { startSdk } from './sdk.js'

interface Dashboard {
  panels: { title: string; targets: { expr: string; legendFormat: string }[] }[]
}

const read = (path: string): string => readFileSync(new URL(`../../${path}`, import.meta.url), 'utf8')
const { panels } = JSON.parse(read('docs/grafana-dashboard.json')) as Dashboard

/** By metric, suffixes such as _bucket included: its labels. */
async function exported(): Promise<Map<string, Set<string>>> {
  const sdk = startSdk(onTestFinished)
  const remote = new RemoteMemory()
  const locks = remote.locks({ namespace: 'shop' })
  const acquiring = locks.acquire('a', { ttl: 3_000 })
  await remote.pass(1)
  const lock = await acquiring
  const busy = locks.acquire('a', { wait: 100 }).catch((error: unknown) => error)
  await remote.pass(1_100)
  expect(await busy).toBeInstanceOf(LockTimeoutError)
  remote.fate = (method) => (method === 'renew' ? 'break' : undefined)
  await remote.pass(4_000)
  expect(lock.isHeld).toBe(false)
  const labels = new Map<string, Set<string>>()
  for (const [, name, list = ''] of (await sdk.prometheus()).matchAll(/^(leasehold_\w+)(?:\{(.*)\})? /gm)) {
    const known = labels.get(name as string) ?? new Set()
    for (const [, label] of list.matchAll(/(\w+)="/g)) known.add(label as string)
    labels.set(name as string, known)
  }
  return labels
}

/** Everything outside of selectors and lists of labels; and histograms by pattern, since some exporters add the unit to the name. */
const metricsIn = (expr: string): string[] => [
  ...(expr.replaceAll(/by \([^)]*\)|\{[^}]*\}/g, '').match(/\bleasehold_\w+/g) ?? []),
  ...[...expr.matchAll(/__name__=~"([^"]*)"/g)].map(([, pattern = '']) => pattern.replace('(_seconds)?', '')),
]
const labelsIn = (expr: string): string[] => [
  ...[...expr.matchAll(/by \(([^)]*)\)/g)].flatMap(([, list = '']) => list.split(', ')),
  ...[...expr.matchAll(/(\w+)(?:=|!=|=~)"/g)].flatMap(([, label = '']) => (label === '__name__' ? [] : [label])),
]

test('every metric and label that the Grafana dashboard names is exported', async () => {
  const labels = await exported()
  expect(panels.length).toBeGreaterThan(8)
  for (const { title, targets } of panels) {
    for (const { expr, legendFormat } of targets) {
      const metrics = metricsIn(expr)
      expect(metrics, `${title}: ${expr}`).not.toEqual([])
      for (const metric of metrics) {
        expect([...labels.keys()], title).toContain(metric)
        const shown = [...legendFormat.matchAll(/\{\{(\w+)\}\}/g)].map(([, label = '']) => label)
        for (const label of [...labelsIn(expr), ...shown])
          expect([...(labels.get(metric) ?? [])], metric).toContain(label)
      }
    }
  }
})

test('every metric is on the Grafana dashboard and in the docs', async () => {
  const shown = new Set(panels.flatMap(({ targets }) => targets.flatMap(({ expr }) => metricsIn(expr).map(base))))
  const all = new Set([...(await exported()).keys()].map(base))
  expect([...shown].sort()).toEqual([...all].sort())
  const page = read('docs/guide/telemetry.md')
  for (const metric of all) expect(page).toMatch(new RegExp(`\\b${metric}(_seconds)?\\b`))
})

/** The name of a histogram without that of its parts. */
function base(metric: string): string {
  return metric.replace(/_(bucket|count|sum)$/, '')
}
