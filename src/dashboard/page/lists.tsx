// Elections, schedules, limiters and processes.
import type { JSX } from 'preact'
import type { ElectionTerm, HolderRow, LimiterView, ProcessView, ScheduleView } from '../protocol.js'
import { clock, count, duration, figure, holderParts, visible } from './format.js'
import {
  Age,
  Card,
  HolderName,
  Name,
  NameButton,
  NobodyPublishes,
  Nothing,
  OriginTag,
  Remaining,
  Share,
  StateMark,
  Until,
} from './parts.js'
import { facts, hello, ofKind } from './state.js'
import { type Column, FactTable } from './table.js'

const LEADERS: readonly Column<HolderRow>[] = [
  {
    title: 'Election',
    of: (row) => (
      <>
        <NameButton of={row} />
        {row.metadata !== undefined && <span class="metadata">{visible(row.metadata.slice(0, 120))}</span>}
      </>
    ),
  },
  { title: 'Leader', of: ({ holder }) => <HolderName holder={holder} /> },
  { title: 'State', of: ({ health }) => <StateMark health={health} /> },
  { title: 'Term', of: ({ token }) => token, style: 'mono' },
  { title: 'Leads for', of: ({ since }) => <Age since={since} /> },
  { title: 'Ends in', of: (row) => <Remaining row={row} /> },
  { title: 'Candidates', of: ({ waiting }) => waiting, style: 'number' },
]

const TERMS: readonly Column<ElectionTerm>[] = [
  { title: 'Election', of: ({ name }) => <Name text={name} /> },
  { title: 'Term', of: ({ term }) => term, style: 'mono' },
  { title: 'Leader', of: ({ leader }) => <HolderName holder={leader} /> },
  { title: 'From', of: ({ since }) => (since === undefined ? '–' : clock(since)) },
  { title: 'Until', of: ({ until }) => (until === undefined ? 'leads' : clock(until)) },
]

export function ElectionsView(): JSX.Element {
  const leaders = ofKind('election')
  const terms = facts.value?.terms ?? []
  return (
    <>
      <Card title="Leaders" aside={<OriginTag origin="store" />}>
        {leaders.length === 0 ? (
          <Nothing>No election has a leader right now.</Nothing>
        ) : (
          <FactTable rows={leaders} keyOf={({ id }) => id} columns={LEADERS} />
        )}
      </Card>
      {terms.length > 0 && (
        <Card title="Terms" aside={<OriginTag origin="store" />}>
          <FactTable rows={terms} keyOf={({ name, term }) => `${name}\0${term}`} columns={TERMS} />
        </Card>
      )}
    </>
  )
}

const SCHEDULES: readonly Column<ScheduleView>[] = [
  { title: 'Schedule', of: ({ name }) => <Name text={name} /> },
  {
    title: 'Runs at',
    style: 'mono',
    of: ({ cron, timezone }) => (
      <>
        {cron === undefined ? <span class="dim">not published</span> : visible(cron)}
        {timezone !== undefined && <span class="dim"> {visible(timezone)}</span>}
      </>
    ),
  },
  {
    title: 'Last run',
    of: ({ last }) => (last === undefined ? <span class="dim">none known</span> : clock(last.tick)),
  },
  { title: 'Outcome', of: (schedule) => <RunOutcome {...schedule} /> },
  {
    title: 'Next run',
    of: ({ next }) =>
      next === undefined ? (
        <span class="dim">not known</span>
      ) : (
        <>
          in <Until at={next} />
          <span class="dim"> · {clock(next)}</span>
        </>
      ),
  },
  { title: 'Origin', of: ({ origin }) => <OriginTag origin={origin} /> },
]

function RunOutcome({ running, last }: ScheduleView): JSX.Element {
  if (running !== undefined) {
    return (
      <>
        <span aria-hidden="true">▶</span> runs on <HolderName holder={running} />
      </>
    )
  }
  return (
    <>
      {last?.outcome === undefined ? '–' : `${last.outcome === 'failed' ? '✕ ' : ''}${visible(last.outcome)}`}
      {last?.tookMs !== undefined && <span class="dim"> after {figure(last.tookMs)}</span>}
      {last?.error !== undefined && <span class="metadata">{visible(last.error)}</span>}
    </>
  )
}

export function SchedulesView(): JSX.Element {
  const { schedules = [], publishing = 0 } = facts.value ?? {}
  return (
    <Card title="Schedules">
      {publishing === 0 && <NobodyPublishes what="When a schedule runs next is" />}
      {schedules.length === 0 ? (
        <Nothing>No schedule has left a trace in the store.</Nothing>
      ) : (
        <FactTable rows={schedules} keyOf={({ name }) => name} columns={SCHEDULES} />
      )}
    </Card>
  )
}

const LIMITERS: readonly Column<LimiterView>[] = [
  { title: 'Limiter', of: ({ name }) => <Name text={name} /> },
  {
    title: 'Limit per key',
    of: ({ limits }) =>
      limits.map(({ limit, perMs, algorithm }) => (
        <div key={`${limit} ${perMs}`}>
          {limit.toLocaleString()} per {figure(perMs)} <span class="dim">{visible(algorithm)}</span>
        </div>
      )),
  },
  { title: 'Allowed', of: ({ allowed }) => allowed.toLocaleString(), style: 'number' },
  { title: 'Refused', of: ({ refused }) => refused.toLocaleString(), style: 'number' },
  {
    title: 'Share refused',
    of: ({ allowed, refused }) => {
      const share = allowed + refused === 0 ? 0 : refused / (allowed + refused)
      return <Share of={share}>{(share * 100).toFixed(share < 0.1 ? 1 : 0)} %</Share>
    },
  },
  { title: 'Processes', of: ({ processes }) => processes, style: 'number' },
]

export function LimitersView(): JSX.Element {
  const { limiters = [], publishing = 0 } = facts.value ?? {}
  return (
    <Card title="Limiters" aside={publishing > 0 ? <OriginTag origin="processes" /> : undefined}>
      {hello.value?.limiters === false ? (
        <Nothing>
          <strong>There are no limiters here.</strong> The {visible(hello.value.store)} store cannot limit rates.
        </Nothing>
      ) : publishing === 0 ? (
        <NobodyPublishes what="What limiters allow and refuse is" />
      ) : limiters.length === 0 ? (
        <Nothing>No process that publishes has a limiter.</Nothing>
      ) : (
        <FactTable rows={limiters} keyOf={({ name }) => name} columns={LIMITERS} />
      )}
    </Card>
  )
}

const counter = (title: string, name: string): Column<ProcessView> => ({
  title,
  of: ({ counters }) => counters?.[name]?.toLocaleString() ?? '–',
  style: 'number',
})

const PROCESSES: readonly Column<ProcessView>[] = [
  {
    title: 'Process',
    of: ({ instance }) => (
      <>
        <HolderName holder={instance} />
        <span class="metadata">{holderParts(instance).rest}</span>
      </>
    ),
  },
  { title: 'Runs for', of: ({ startedAt }) => (startedAt === undefined ? '–' : <Age since={startedAt} />) },
  {
    title: 'Published',
    of: ({ publishedAt, everyMs = 0 }) =>
      publishedAt === undefined ? (
        <span class="dim">does not publish</span>
      ) : (
        <>
          <Age since={publishedAt} /> ago
          <span class="dim">, every {duration(everyMs)}</span>
        </>
      ),
  },
  { title: 'Holds', of: ({ held }) => held, style: 'number' },
  { title: 'At risk', of: ({ atRisk }) => (atRisk ? `△ ${atRisk}` : (atRisk ?? '–')), style: 'number' },
  { title: 'Waits', of: ({ waiting }) => waiting ?? '–', style: 'number' },
  counter('Acquired', 'acquired'),
  counter('In vain', 'timeouts'),
  counter('Lost', 'lost'),
]

export function ProcessesView(): JSX.Element {
  const { processes = [], publishing = 0 } = facts.value ?? {}
  return (
    <Card title="Processes" aside={<span class="dim">{count(publishing, 'publishes', 'publish')}</span>}>
      {publishing === 0 && <NobodyPublishes what="What a process did so far is" />}
      {processes.length === 0 ? (
        <Nothing>No process holds or publishes anything.</Nothing>
      ) : (
        <FactTable rows={processes} keyOf={({ instance }) => instance} columns={PROCESSES} />
      )}
    </Card>
  )
}
