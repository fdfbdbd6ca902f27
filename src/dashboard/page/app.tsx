// The frame: header, figures, tabs, and the keyboard.
import type { JSX } from 'preact'
import { ContentionView, publishingText } from './contention.js'
import { STATES } from './explain.js'
import { duration, visible } from './format.js'
import { ElectionsView, LimitersView, ProcessesView, SchedulesView } from './lists.js'
import { LocksView } from './locks.js'
import { LossesView } from './losses.js'
import { Panel } from './panel.js'
import { Name, Until } from './parts.js'
import {
  TABS,
  type Tab,
  connection,
  cursor,
  facts,
  hello,
  helpOpen,
  keyOf,
  now,
  search,
  selected,
  shown,
  state,
  tab,
  totals,
} from './state.js'
import { theme, toggleTheme } from './theme.js'

const VIEWS: Record<Tab, { title: string; view: () => JSX.Element }> = {
  locks: { title: 'Locks', view: LocksView },
  contention: { title: 'Contention', view: ContentionView },
  losses: { title: 'Losses', view: LossesView },
  elections: { title: 'Elections', view: ElectionsView },
  schedules: { title: 'Schedules', view: SchedulesView },
  limiters: { title: 'Limiters', view: LimitersView },
  processes: { title: 'Processes', view: ProcessesView },
}

export function App(): JSX.Element {
  const { title, view: View } = VIEWS[tab.value]
  return (
    <>
      <Header />
      <Outage />
      <AtRisk />
      <Figures />
      <Tabs />
      <div class={selected.value === undefined ? 'body' : 'body with-panel'}>
        <main id="view" aria-label={title}>
          {/* Nothing is known before the first look. */}
          {facts.value || tab.value === 'locks' ? <View /> : <p class="nothing">…</p>}
        </main>
        {selected.value !== undefined && <Panel key={selected.value} of={selected.value} />}
      </div>
      {helpOpen.value && <Help />}
    </>
  )
}

const CONNECTIONS = {
  connecting: ['○', 'connecting'],
  live: ['●', 'live'],
  paused: ['Ⅱ', 'paused'],
  lost: ['✕', 'the dashboard does not answer; trying again'],
  refused: ['✕', 'refused; reload the page'],
} as const

function Header(): JSX.Element {
  const [icon, word] = CONNECTIONS[connection.value]
  return (
    <header class="top">
      <h1>
        <svg viewBox="0 0 32 32" width="22" height="22" aria-hidden="true">
          <rect x="5" y="14" width="22" height="14" rx="3" fill="currentColor" />
          <path d="M10 14v-4a6 6 0 0 1 12 0v4" fill="none" stroke="currentColor" stroke-width="3" />
        </svg>
        leasehold
      </h1>
      <span class="store">
        <bdi>{visible(hello.value?.title ?? '')}</bdi>
      </span>
      <span class="connection" data-state={connection.value} role="status">
        <span aria-hidden="true">{icon}</span> {word}
      </span>
      <button
        type="button"
        class="quiet"
        onClick={toggleTheme}
        aria-label={`Switch to ${theme.value === 'dark' ? 'light' : 'dark'}`}
      >
        {theme.value === 'dark' ? '☀' : '☾'}
      </button>
      <button type="button" class="quiet" onClick={() => (helpOpen.value = true)} aria-label="Keyboard and signs">
        ?
      </button>
    </header>
  )
}

function Outage(): JSX.Element | null {
  const store = facts.value?.store
  if (!store || store.reachable) return null
  return (
    <p class="outage" role="alert">
      <strong>The store does not answer</strong>
      {store.since !== undefined && <> since {duration(now.value - store.since)}</>}: {visible(store.error ?? '')}. What
      is shown is from before.
    </p>
  )
}

/** Above everything: work under these locks has little time left, wherever they are in the table. */
function AtRisk(): JSX.Element | null {
  const { risky } = totals.value
  const [first] = risky
  if (!first) return null
  // A process names only those that end first.
  const told = (facts.value?.processes ?? []).reduce((sum, { atRisk = 0 }) => sum + atRisk, 0)
  const all = Math.max(risky.length, told)
  return (
    <p class="risk">
      <strong role="alert">
        <span aria-hidden="true">{STATES['at-risk'].icon}</span>{' '}
        {all === 1 ? '1 lock is at risk' : `${all.toLocaleString()} locks are at risk`}
      </strong>
      : renewals fail.{' '}
      <button type="button" class="open" onClick={() => (selected.value = keyOf(first))}>
        <Name text={first.name} />
      </button>{' '}
      ends{' '}
      {first.ends !== undefined && (
        <>
          in <Until at={first.ends} />{' '}
        </>
      )}
      unless one works before.{' '}
      {risky.length > 1 && (
        <button
          type="button"
          onClick={() => {
            tab.value = 'locks'
            state.value = 'at-risk'
          }}
        >
          Show all
        </button>
      )}
    </p>
  )
}

function Figures(): JSX.Element {
  const { held, waiting, silent } = totals.value
  const isKnown = facts.value !== undefined
  const recent = (facts.value?.losses ?? []).filter(({ at }) => at > now.value - 300_000).length
  const go = (to: Tab): void => void (tab.value = to)
  return (
    <div class="figures">
      <Figure value={isKnown ? held : '–'} label="held" onClick={() => go('locks')} />
      <Figure
        value={hello.value?.queue === false || !isKnown ? '–' : waiting}
        label="waiting"
        alert={waiting > 0}
        onClick={() => go('contention')}
      />
      <Figure
        value={isKnown ? silent : '–'}
        label="silent or gone"
        alert={silent > 0}
        onClick={() => {
          go('locks')
          state.value = 'silent'
        }}
      />
      <Figure value={isKnown ? recent : '–'} label="lost, last 5 min" alert={recent > 0} onClick={() => go('losses')} />
      <Figure value={facts.value?.publishing ?? '–'} label={publishingText()} onClick={() => go('processes')} />
    </div>
  )
}

function Figure(props: { value: number | string; label: string; alert?: boolean; onClick: () => void }): JSX.Element {
  return (
    <button type="button" class={props.alert ? 'figure alert' : 'figure'} onClick={props.onClick}>
      <b>{props.value.toLocaleString()}</b>
      <span>{props.label}</span>
    </button>
  )
}

function Tabs(): JSX.Element {
  return (
    <nav class="tabs" aria-label="Views">
      {TABS.map((one) => (
        <a key={one} href={`#${one}`} aria-current={tab.value === one ? 'page' : undefined}>
          {VIEWS[one].title}
        </a>
      ))}
    </nav>
  )
}

function Help(): JSX.Element {
  return (
    <div class="help-back" onClick={() => (helpOpen.value = false)}>
      <div
        class="help"
        role="dialog"
        aria-label="Keyboard and signs"
        aria-modal="true"
        onClick={(event) => event.stopPropagation()}
      >
        <h2>Keyboard</h2>
        <dl>
          <dt>
            <kbd>/</kbd>
          </dt>
          <dd>search</dd>
          <dt>
            <kbd>j</kbd> <kbd>k</kbd>
          </dt>
          <dd>next, previous holder</dd>
          <dt>
            <kbd>Enter</kbd>
          </dt>
          <dd>open it; in the search, the first one found</dd>
          <dt>
            <kbd>Esc</kbd>
          </dt>
          <dd>close, clear the search</dd>
          <dt>
            <kbd>1</kbd>–<kbd>7</kbd>
          </dt>
          <dd>views</dd>
          <dt>
            <kbd>t</kbd>
          </dt>
          <dd>light or dark</dd>
        </dl>
        <h2>Signs</h2>
        <dl>
          <dt>● alive</dt>
          <dd>renewed, published or acquired just now</dd>
          <dt>△ at risk</dt>
          <dd>its process says that renewals fail</dd>
          <dt>◐ silent</dt>
          <dd>should have renewed, and has not</dd>
          <dt>✕ gone</dt>
          <dd>its process does not exist any more</dd>
          <dt>○ not known</dt>
          <dd>nothing was seen yet that would tell</dd>
          <dt>▤</dt>
          <dd>seen in the store by this dashboard</dd>
          <dt>⇡</dt>
          <dd>told by processes with publish</dd>
        </dl>
        <button type="button" autofocus onClick={() => (helpOpen.value = false)}>
          Close
        </button>
      </div>
    </div>
  )
}

export function readHash(): void {
  const wanted = location.hash.slice(1) as Tab
  if (TABS.includes(wanted)) tab.value = wanted
}

export function onKey(event: KeyboardEvent): void {
  if (event.ctrlKey || event.metaKey || event.altKey) return
  const target = event.target as HTMLElement
  const isTyping = /^(input|select|textarea)$/i.test(target.tagName)
  if (event.key === 'Escape') return escape(target)
  if (isTyping) return
  const view = TABS[Number(event.key) - 1]
  if (view !== undefined) location.hash = view
  else if (event.key === '/') {
    event.preventDefault()
    location.hash = 'locks'
    tab.value = 'locks'
    requestAnimationFrame(() => document.getElementById('search')?.focus())
  } else if (event.key === 't') toggleTheme()
  else if (event.key === '?') helpOpen.value = !helpOpen.value
  else if (tab.value === 'locks') moveCursor(event)
}

function moveCursor(event: KeyboardEvent): void {
  const by = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[event.key]
  const isButton = (event.target as HTMLElement).tagName === 'BUTTON'
  if (by !== undefined) {
    event.preventDefault()
    cursor.value = Math.min(Math.max(cursor.value + by, 0), shown.value.length - 1)
    requestAnimationFrame(() => document.querySelector('tr.cursor')?.scrollIntoView({ block: 'nearest' }))
  } else if (event.key === 'Enter' && !isButton) {
    const row = shown.value[cursor.value]
    if (row) selected.value = keyOf(row)
  }
}

function escape(target: HTMLElement): void {
  if (helpOpen.value) helpOpen.value = false
  else if (selected.value !== undefined) selected.value = undefined
  else {
    search.value = ''
    target.blur()
  }
}
