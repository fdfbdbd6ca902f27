// Small pieces that several views use.
import type { ComponentChildren, JSX } from 'preact'
import type { Health, HolderRow, Origin } from '../protocol.js'
import { STATES, originText } from './explain.js'
import { clock, holderParts, visible } from './format.js'
import { facts, hello, keyOf, now, selected } from './state.js'
import { ageText, barTransform, untilText } from './ticking.js'

/** How long ago, counting: see ticking.ts. */
export function Age({ since }: { since: number | undefined }): JSX.Element {
  if (since === undefined) return <span class="dim">not known</span>
  return (
    <time data-since={since} title={`since ${clock(since)}`}>
      {ageText(since, now.peek())}
    </time>
  )
}

/** How long until then, counting down. */
export function Until({ at }: { at: number }): JSX.Element {
  return (
    <span data-until={at} title={clock(at)}>
      {untilText(at, now.peek())}
    </span>
  )
}

/** The time that is left of a lease, draining. */
export function Remaining({ row }: { row: HolderRow }): JSX.Element {
  const { ends, ttlMs = 1 } = row
  if (ends === undefined) return <span class="dim">never</span>
  return (
    <span class="remaining">
      <span class="bar" data-state={row.health.state} aria-hidden="true">
        <i data-ends={ends} data-ttl={ttlMs} style={{ transform: barTransform(ends, ttlMs, now.peek()) }} />
      </span>
      <Until at={ends} />
    </span>
  )
}

export function StateMark({ health }: { health: Health }): JSX.Element {
  const { icon, word } = STATES[health.state]
  return (
    <span class="state" data-state={health.state}>
      <span aria-hidden="true">{icon}</span> {word}
    </span>
  )
}

export function HolderName({ holder, foreign }: { holder: string; foreign?: boolean | undefined }): JSX.Element {
  const { host, pid } = holderParts(holder)
  return (
    <span class="holder" title={visible(holder)}>
      <bdi>{host}</bdi>
      {pid !== undefined && <span class="dim"> · {pid}</span>}
      {foreign && <span class="tag">foreign</span>}
    </span>
  )
}

/** A name of another process, as text. */
export function Name({ text }: { text: string }): JSX.Element {
  return <bdi class="name">{visible(text)}</bdi>
}

/** A name that opens its panel. */
export function NameButton({ of }: { of: { kind: string; name: string } }): JSX.Element {
  return (
    <button type="button" class="open" onClick={() => (selected.value = keyOf(of))}>
      <Name text={of.name} />
    </button>
  )
}

export function KindTag({ kind }: { kind: string }): JSX.Element | null {
  return kind === 'lock' ? null : <span class="tag">{visible(kind)}</span>
}

/** A bar that is filled by so much, before its figure. */
export function Share({ of, children }: { of: number; children: ComponentChildren }): JSX.Element {
  return (
    <span class="remaining">
      <span class="bar plain" aria-hidden="true">
        <i style={{ transform: `scaleX(${of.toFixed(3)})` }} />
      </span>
      {children}
    </span>
  )
}

/** Where a figure comes from. */
export function OriginTag({ origin, one }: { origin: Origin; one?: boolean }): JSX.Element {
  const publishing = one ? 1 : (facts.value?.publishing ?? 0)
  const mark = { store: '▤', processes: '⇡', dashboard: '✎' }[origin]
  return (
    <span class="origin" data-origin={origin}>
      <span aria-hidden="true">{mark}</span> {originText(origin, publishing)}
    </span>
  )
}

export function Card(props: {
  title: string
  aside?: ComponentChildren
  children: ComponentChildren
  id?: string
}): JSX.Element {
  const id = props.id ?? props.title.toLowerCase().replace(/\W+/g, '-')
  return (
    <section class="card" aria-labelledby={`${id}-title`}>
      <header>
        <h2 id={`${id}-title`}>{props.title}</h2>
        {props.aside}
      </header>
      {props.children}
    </section>
  )
}

/** Instead of an empty chart or table. */
export function Nothing({ children }: { children: ComponentChildren }): JSX.Element {
  return <p class="nothing">{children}</p>
}

export function NobodyPublishes({ what }: { what: string }): JSX.Element {
  if (hello.value?.publish === false) {
    return (
      <Nothing>
        <strong>No process can publish here.</strong> {what} known only to the processes themselves, and the{' '}
        {visible(hello.value.store)} store keeps no values beside its locks.
      </Nothing>
    )
  }
  return (
    <Nothing>
      <strong>No process publishes.</strong> {what} known only to the processes themselves. To see it here:{' '}
      <code>
        createLocks(store, {'{'} publish: '5s' {'}'})
      </code>
    </Nothing>
  )
}
