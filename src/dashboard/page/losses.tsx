// Locks that were lost or taken away, on a line of time and as a list.
import type { JSX } from 'preact'
import type { LossView, ReleaseAction } from '../protocol.js'
import { LOSS_MARKS, lossFacts, lossReason } from './explain.js'
import { clock, count, duration, visible } from './format.js'
import { Card, HolderName, KindTag, Name, NobodyPublishes, Nothing, OriginTag } from './parts.js'
import { facts, now } from './state.js'
import { type Column, FactTable } from './table.js'

/** Minutes that the line shows. */
const MINUTES = 30
const WIDTH = 1_000
const ROWS = { forced: 16, lost: 42, 'ran-out': 68 } as const

export function LossesView(): JSX.Element {
  const { losses = [], publishing = 0, actions = [] } = facts.value ?? {}
  return (
    <>
      <Card title={`Lost and forced releases, last ${MINUTES} minutes`} id="losses">
        {losses.length === 0 ? (
          <Nothing>Nothing was lost or taken away, as far as is known.</Nothing>
        ) : (
          <Timeline losses={losses} />
        )}
        {publishing === 0 && <NobodyPublishes what="Most losses are" />}
        {losses.length > 0 && <LossTable losses={losses.slice(0, 100)} />}
      </Card>
      {actions.length > 0 && (
        <Card title="Released with this dashboard">
          <FactTable rows={actions} keyOf={({ at }) => at} columns={ACTIONS} />
        </Card>
      )}
    </>
  )
}

function Timeline({ losses }: { losses: LossView[] }): JSX.Element {
  const end = Math.ceil(now.value / 5_000) * 5_000
  const start = end - MINUTES * 60_000
  const at = (time: number): number => ((time - start) / (end - start)) * (WIDTH - 110) + 90
  const inView = losses.filter((loss) => loss.at >= start)
  const label = (Object.keys(ROWS) as (keyof typeof ROWS)[])
    .map((what) => `${inView.filter((loss) => loss.what === what).length} ${LOSS_MARKS[what].word}`)
    .join(', ')
  return (
    <svg
      class="timeline"
      viewBox={`0 0 ${WIDTH} 104`}
      role="img"
      aria-label={`In the last ${MINUTES} minutes: ${label}`}
    >
      {(Object.keys(ROWS) as (keyof typeof ROWS)[]).map((what) => (
        <g key={what}>
          <text x="0" y={ROWS[what] + 4} class="axis">
            {LOSS_MARKS[what].word}
          </text>
          <line x1="90" x2={WIDTH - 20} y1={ROWS[what]} y2={ROWS[what]} class="rule" />
        </g>
      ))}
      {[0, 5, 10, 15, 20, 25, 30].map((minute) => (
        <text key={minute} x={at(end - minute * 60_000)} y="98" class="axis" text-anchor="middle">
          {minute === 0 ? 'now' : `−${minute} min`}
        </text>
      ))}
      {inView.map((loss) => (
        <text
          key={`${loss.holder}${loss.at}`}
          x={at(loss.at)}
          y={ROWS[loss.what] + 5}
          class="mark"
          data-what={loss.what}
          text-anchor="middle"
        >
          <title>{`${visible(loss.name)}, ${clock(loss.at)}: ${lossReason(loss)}`}</title>
          {LOSS_MARKS[loss.what].icon}
        </text>
      ))}
    </svg>
  )
}

const LOSSES: readonly Column<LossView>[] = [
  { title: 'When', of: ({ at }) => clock(at) },
  {
    title: 'What',
    style: 'what',
    of: ({ what }) => (
      <span data-what={what}>
        <span aria-hidden="true">{LOSS_MARKS[what].icon}</span> {LOSS_MARKS[what].word}
      </span>
    ),
  },
  {
    title: 'Name',
    of: ({ name, kind }) => (
      <>
        <Name text={name} />
        <KindTag kind={kind} />
      </>
    ),
  },
  { title: 'Holder', of: ({ holder }) => <HolderName holder={holder} /> },
  { title: 'Held for', of: ({ heldMs }) => (heldMs === undefined ? '–' : duration(heldMs)) },
  {
    title: 'Why',
    of: (loss) => (
      <>
        {visible(lossReason(loss))}
        {loss.why !== undefined && <span class="tag">{visible(loss.why)}</span>}
        <LossDetail loss={loss} />
      </>
    ),
  },
  { title: 'Origin', of: ({ origin }) => <OriginTag origin={origin} one /> },
]

const ACTIONS: readonly Column<ReleaseAction>[] = [
  { title: 'When', of: ({ at }) => clock(at) },
  { title: 'Name', of: ({ name }) => <Name text={name} /> },
  {
    title: 'Taken from',
    of: ({ error, holders }) =>
      error ? visible(error) : holders.map((holder) => <HolderName key={holder} holder={holder} />),
  },
  { title: 'By', of: ({ by }) => visible(by) },
]

function LossTable({ losses }: { losses: LossView[] }): JSX.Element {
  return (
    <FactTable
      class="losses"
      caption={`${count(losses.length, 'loss', 'losses')}, the latest first`}
      rows={losses}
      keyOf={({ holder, name, at }) => `${holder}${name}${at}`}
      columns={LOSSES}
    />
  )
}

function LossDetail({ loss }: { loss: LossView }): JSX.Element | null {
  const said = lossFacts(loss)
  if (said.length === 0) return null
  return (
    <details>
      <summary>What happened before</summary>
      <ul>
        {said.map((line, index) => (
          <li key={index}>{visible(line)}</li>
        ))}
      </ul>
    </details>
  )
}
