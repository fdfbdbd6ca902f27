// How much is waited for what, and how long locks are held.
import type { JSX } from 'preact'
import type { ContentionName, SlotView } from '../protocol.js'
import { Chart, type Series } from './chart.js'
import { figure } from './format.js'
import { Card, KindTag, NameButton, NobodyPublishes, Nothing, OriginTag, Share } from './parts.js'
import { facts, history, keyOf } from './state.js'
import { type Column, FactTable } from './table.js'

const LINES = [
  { label: 'p50', color: 'line-1' },
  { label: 'p95', color: 'line-2', dash: [8, 4] },
  { label: 'p99', color: 'line-3', dash: [2, 4] },
]

function percentileSeries(slots: SlotView[], what: 'wait' | 'hold'): Series[] {
  return LINES.map((line, i) => ({ ...line, values: slots.map((slot) => slot[what]?.[i as 0 | 1 | 2] ?? null) }))
}

export function ContentionView(): JSX.Element {
  const all = facts.value
  if (!all) return <Nothing>…</Nothing>
  return (
    <div class="grid">
      <Card title="Held and waiting" aside={<OriginTag origin="store" />}>
        <HeldChart />
      </Card>
      <PercentileCard title="Time waited" what="wait" />
      <PercentileCard title="Time held" what="hold" />
      <Card title="Most waited for, last 5 minutes" id="most-waited">
        <MostWaited />
      </Card>
    </div>
  )
}

export function HeldChart(): JSX.Element {
  const points = history.value
  const series: Series[] = [
    { label: 'waiting', color: 'line-2', values: points.map(([, , waiting]) => waiting), fill: true, steps: true },
    { label: 'held', color: 'line-1', dash: [8, 4], values: points.map(([, held]) => held), steps: true },
  ]
  return (
    <Chart
      label="Held and waiting now"
      times={points.map(([at]) => at)}
      series={series}
      format={(n) => String(Math.round(n))}
    />
  )
}

/** Figures that processes publish; without any, what was seen in the store, as far as it can be seen there. */
function PercentileCard({ title, what }: { title: string; what: 'wait' | 'hold' }): JSX.Element {
  const { slots = [], sampledSlots = [], publishing = 0 } = facts.value ?? {}
  const isPublished = publishing > 0
  const used = (isPublished ? slots : what === 'hold' ? sampledSlots : []).filter((slot) => slot[what] !== undefined)
  const origin = isPublished ? 'processes' : 'store'
  return (
    <Card title={title} aside={<OriginTag origin={origin} />}>
      {!isPublished && what === 'wait' ? (
        <NobodyPublishes what="How long was waited is" />
      ) : used.length === 0 ? (
        <Nothing>
          {isPublished ? 'Nothing in the last 5 minutes.' : 'No lock has ended since this dashboard began to watch.'}
        </Nothing>
      ) : (
        <Chart
          label={`${title}, percentiles of the last 5 minutes`}
          times={used.map(({ at }) => at)}
          series={percentileSeries(used, what)}
          format={figure}
          logarithmic
        />
      )}
      {!isPublished && what === 'hold' && used.length > 0 && (
        <p class="dim">No process publishes: locks held for less than a second may be missing.</p>
      )}
    </Card>
  )
}

function MostWaited(): JSX.Element {
  const names = facts.value?.names ?? []
  const most = Math.max(...names.map(({ waitMs }) => waitMs), 1)
  if (names.length === 0) return <Nothing>Nobody waited.</Nothing>
  const columns: Column<ContentionName>[] = [
    {
      title: 'Name',
      of: (one) => (
        <>
          <NameButton of={one} />
          <KindTag kind={one.kind} />
        </>
      ),
    },
    { title: 'Waited in all', of: ({ waitMs }) => <Share of={waitMs / most}>{figure(waitMs)}</Share> },
    { title: 'Waiting now', of: ({ waiting }) => waiting, style: 'number' },
    { title: 'Acquired', of: ({ acquired }) => acquired ?? '–', style: 'number' },
    { title: 'In vain', of: ({ timeouts }) => timeouts ?? '–', style: 'number' },
    { title: 'Origin', of: ({ origin }) => <OriginTag origin={origin} /> },
  ]
  return <FactTable rows={names} keyOf={keyOf} columns={columns} />
}

/** Beside the number of processes that publish. */
export function publishingText(): string {
  if (!facts.value) return 'publish'
  const { publishing, processes } = facts.value
  if (publishing === 0) return 'no process publishes'
  return publishing < processes.length
    ? `of ${processes.length} processes publish`
    : publishing === 1
      ? 'process publishes'
      : 'processes publish'
}
