// One name in full: its holders, its queue, and what releasing it would do.
import { useSignal, useSignalEffect } from '@preact/signals'
import type { JSX } from 'preact'
import { useEffect, useRef } from 'preact/hooks'
import type { HolderRow, LockDetail } from '../protocol.js'
import { endSentence, healthReasons, releaseConsequences } from './explain.js'
import { count, duration, visible } from './format.js'
import { Age, HolderName, Name, Remaining, StateMark } from './parts.js'
import { connection, hello, holdersOf, now, selected } from './state.js'

/** Milliseconds between two looks at the queue while the panel is open. */
const LOOK_EVERY_MS = 500

export function Panel({ of }: { of: string }): JSX.Element {
  const [kind = '', name = ''] = of.split('\0')
  const detail = useSignal<LockDetail | undefined>(undefined)
  const closing = useRef<HTMLButtonElement>(null)
  const rows = holdersOf(of)
  useEffect(() => closing.current?.focus(), [of])
  useSignalEffect(() => {
    // Read here: a hidden page looks no more, and begins again when it is seen.
    if (connection.value !== 'live') return undefined
    const look = async (): Promise<void> => {
      const answer = await fetch(`api/lock?${new URLSearchParams({ kind, name })}`)
      if (answer.ok) detail.value = (await answer.json()) as LockDetail
    }
    const begin = (): void => void look().catch(() => {})
    begin()
    const timer = setInterval(begin, LOOK_EVERY_MS)
    return () => clearInterval(timer)
  })
  const waiters = detail.value?.waiters
  return (
    <aside class="panel" aria-label={`Details of ${visible(name)}`}>
      <header>
        <h2>
          <Name text={name} />
        </h2>
        <span class="tag">{visible(kind)}</span>
        <button
          type="button"
          ref={closing}
          class="close"
          aria-label="Close details"
          onClick={() => (selected.value = undefined)}
        >
          ✕
        </button>
      </header>
      {rows.length === 0 ? <p class="nothing">Nobody holds it right now.</p> : <Holders rows={rows} />}
      <h3>Queue</h3>
      <Queue waiters={waiters} />
      {rows.length > 0 && (
        <Release rows={rows} waiters={waiters?.map(({ holder }) => holder)} kind={kind} name={name} />
      )}
    </aside>
  )
}

function Holders({ rows }: { rows: HolderRow[] }): JSX.Element {
  const first = rows.slice(0, 10)
  return (
    <>
      {first.map((row) => (
        <Holder key={row.id} row={row} />
      ))}
      {rows.length > first.length && <p class="dim">and {count(rows.length - first.length, 'holder')} more</p>}
    </>
  )
}

function Holder({ row }: { row: HolderRow }): JSX.Element {
  const time = now.value
  const greeting = hello.value
  return (
    <div class="one-holder">
      <p class="who">
        <StateMark health={row.health} /> <HolderName holder={row.holder} foreign={row.foreign} />
      </p>
      <Remaining row={row} />
      <p>{greeting && endSentence(row, time, greeting)}</p>
      <details open>
        <summary>How we know</summary>
        <ul>
          {healthReasons(row, time).map((reason) => (
            <li key={reason.slice(0, 12)}>{reason}</li>
          ))}
        </ul>
      </details>
      <dl>
        <dt>Held for</dt>
        <dd>
          <Age since={row.since} />
        </dd>
        <dt>Holder</dt>
        <dd class="mono">{visible(row.holder)}</dd>
        {row.token !== undefined && (
          <>
            <dt>{row.kind === 'election' ? 'Term' : 'Fencing token'}</dt>
            <dd class="mono">{row.token}</dd>
          </>
        )}
        {Object.entries(row.detail ?? {}).map(([what, value]) => (
          <>
            <dt>{visible(what)}</dt>
            <dd class="mono">{visible(String(value))}</dd>
          </>
        ))}
      </dl>
      {row.metadata !== undefined && <pre>{pretty(row.metadata)}</pre>}
    </div>
  )
}

function pretty(json: string): string {
  try {
    return visible(JSON.stringify(JSON.parse(json), null, 2), '\n')
  } catch {
    return visible(json)
  }
}

function Queue({ waiters }: { waiters: LockDetail['waiters'] | undefined }): JSX.Element {
  if (hello.value?.queue === false) return <p class="dim">This store keeps no queue: waiters ask again and again.</p>
  if (!waiters) return <p class="dim">…</p>
  if (waiters.length === 0) return <p class="dim">Nobody waits.</p>
  return (
    <ol class="queue">
      {waiters.map((waiter) => (
        <li key={waiter.holder}>
          <HolderName holder={waiter.holder} />
          {waiter.mode === 'shared' && waiter.weight === undefined && <span class="tag">shared</span>}
          {waiter.weight !== undefined && <span class="tag">{count(waiter.weight, 'permit')}</span>}
          {waiter.waitedMs !== undefined && <span class="dim"> waits {duration(waiter.waitedMs)}</span>}
          {waiter.metadata !== undefined && <span class="metadata">{visible(waiter.metadata.slice(0, 120))}</span>}
        </li>
      ))}
    </ol>
  )
}

function Release(props: { rows: HolderRow[]; waiters: string[] | undefined; kind: string; name: string }): JSX.Element {
  const { rows, waiters, kind, name } = props
  const step = useSignal<'ask' | 'confirm' | 'busy'>('ask')
  const said = useSignal('')
  const greeting = hello.value
  const release = async (): Promise<void> => {
    step.value = 'busy'
    try {
      const headers = { 'content-type': 'application/json', 'x-leasehold-dashboard': '1' }
      const body = JSON.stringify({ kind, name, holders: rows.map(({ holder }) => holder) })
      const answer = await fetch('api/release', { method: 'POST', headers, body })
      const { released, error } = (await answer.json()) as { released?: string[]; error?: string }
      said.value = released ? `Taken away from ${count(released.length, 'holder')}.` : `Not released: ${error}`
    } catch (error) {
      said.value = `Not known whether it was released: ${(error as Error).message}`
    }
    step.value = 'ask'
  }
  return (
    <>
      <h3>What releasing it would do</h3>
      <ul class="consequences">
        {greeting && releaseConsequences(rows, waiters, greeting).map((line) => <li key={line}>{line}</li>)}
      </ul>
      {greeting?.allowRelease ? (
        <p class="release">
          {step.value === 'ask' && (
            <button type="button" class="danger" onClick={() => (step.value = 'confirm')}>
              Release…
            </button>
          )}
          {step.value === 'confirm' && (
            <>
              <button type="button" class="danger" onClick={() => void release()}>
                Yes, take it away
              </button>{' '}
              <button type="button" onClick={() => (step.value = 'ask')}>
                No
              </button>
            </>
          )}
          {step.value === 'busy' && '…'}
        </p>
      ) : (
        <p class="dim">This dashboard only shows. It releases if it is started with --allow-release.</p>
      )}
      <p role="status">{said.value}</p>
    </>
  )
}
