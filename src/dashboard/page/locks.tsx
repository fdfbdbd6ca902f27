// The table of what is held.
import type { JSX } from 'preact'
import { memo } from 'preact/compat'
import type { HolderRow } from '../protocol.js'
import { count, visible } from './format.js'
import { Age, HolderName, KindTag, Name, Nothing, Remaining, StateMark } from './parts.js'
import {
  ROWS_SHOWN,
  type SortBy,
  cursor,
  facts,
  keyOf,
  kind,
  matching,
  pageCount,
  pageIndex,
  prefix,
  search,
  selected,
  shown,
  sortBy,
  state,
  totals,
} from './state.js'

export function LocksView(): JSX.Element {
  return (
    <>
      <Filters />
      <HolderTable />
    </>
  )
}

/** Enter in the search field. */
function openFirst(event: Event): void {
  event.preventDefault()
  const [first] = shown.value
  if (first) selected.value = keyOf(first)
}

function Filters(): JSX.Element {
  const first = (set: () => void): void => {
    set()
    pageIndex.value = 0
    cursor.value = -1
  }
  return (
    <form class="filters" role="search" onSubmit={openFirst}>
      <label class="grow">
        <span class="hidden">Search names, holders and metadata</span>
        <input
          id="search"
          type="search"
          placeholder="Search names, holders, metadata  ( / )"
          value={search.value}
          onInput={(event) => first(() => (search.value = event.currentTarget.value))}
        />
      </label>
      <Choice label="Prefix" value={prefix.value} onChange={(value) => first(() => (prefix.value = value))}>
        <option value="">all names</option>
        {prefix.value !== '' && !totals.value.prefixes.some(([one]) => one === prefix.value) && (
          <option value={prefix.value}>{visible(prefix.value)}…</option>
        )}
        {totals.value.prefixes.map(([one, many]) => (
          <option key={one} value={one}>
            {visible(one)}… ({many})
          </option>
        ))}
      </Choice>
      <Choice label="Kind" value={kind.value} onChange={(value) => first(() => (kind.value = value))}>
        <option value="">all kinds</option>
        <option value="lock">locks</option>
        <option value="semaphore">semaphores</option>
        <option value="election">elections</option>
      </Choice>
      <Choice label="Holder" value={state.value} onChange={(value) => first(() => (state.value = value))}>
        <option value="">any holder</option>
        <option value="alive">alive</option>
        <option value="at-risk">at risk</option>
        <option value="silent">silent</option>
        <option value="gone">gone</option>
        <option value="unknown">not known</option>
      </Choice>
      <Choice label="Order" value={sortBy.value} onChange={(value) => first(() => (sortBy.value = value as SortBy))}>
        <option value="waiting">most waited for</option>
        <option value="longest">held longest</option>
        <option value="ends">ends first</option>
        <option value="name">name</option>
      </Choice>
    </form>
  )
}

function Choice(props: {
  label: string
  value: string
  onChange: (value: string) => void
  children: JSX.Element | (JSX.Element | JSX.Element[] | false)[]
}): JSX.Element {
  return (
    <label>
      <span class="hidden">{props.label}</span>
      <select value={props.value} onChange={(event) => props.onChange(event.currentTarget.value)}>
        {props.children}
      </select>
    </label>
  )
}

function HolderTable(): JSX.Element {
  const rows = shown.value
  const all = matching.value.length
  const from = Math.min(pageIndex.value, pageCount.value - 1) * ROWS_SHOWN
  const summary =
    all <= ROWS_SHOWN ? count(all, 'holder') : `${from + 1}–${from + rows.length} of ${count(all, 'holder')}`
  return (
    <>
      <div class="table-head">
        <p role="status">
          {summary}
          {facts.value?.truncated !== undefined &&
            `; there are more than ${facts.value.truncated.toLocaleString()}, the rest is not read`}
        </p>
        {pageCount.value > 1 && <Pages />}
      </div>
      {rows.length === 0 ? (
        <Nothing>{emptyText()}</Nothing>
      ) : (
        <table class="holders">
          <thead>
            <tr>
              <th scope="col">Name</th>
              <th scope="col">Holder</th>
              <th scope="col">State</th>
              <th scope="col">Held for</th>
              <th scope="col">Ends in</th>
              <th scope="col" class="number">
                Waiting
              </th>
              <th scope="col" class="wide">
                Token
              </th>
            </tr>
          </thead>
          <tbody>
            {rows.map((row, index) => (
              <Row
                key={row.id}
                row={row}
                isSelected={keyOf(row) === selected.value}
                isAtCursor={index === cursor.value}
              />
            ))}
          </tbody>
        </table>
      )}
    </>
  )
}

/** Before the first look, and during an outage, nothing is known: that is not the same as nothing. */
function emptyText(): string {
  if (totals.value.held > 0) return 'Nothing that is held matches.'
  if (!facts.value) return '…'
  return facts.value.store.reachable ? 'Nothing is held right now.' : 'Not known: the store does not answer.'
}

function Pages(): JSX.Element {
  const go = (by: number): void => {
    pageIndex.value = Math.min(Math.max(pageIndex.value + by, 0), pageCount.value - 1)
    cursor.value = -1
  }
  return (
    <nav aria-label="Pages of holders">
      <button type="button" disabled={pageIndex.value === 0} onClick={() => go(-1)}>
        ‹ Previous
      </button>
      <button type="button" disabled={pageIndex.value >= pageCount.value - 1} onClick={() => go(1)}>
        Next ›
      </button>
    </nav>
  )
}

interface RowProps {
  row: HolderRow
  isSelected: boolean
  isAtCursor: boolean
}

const Row = memo(function Row({ row, isSelected, isAtCursor }: RowProps): JSX.Element {
  const open = (): void => {
    selected.value = keyOf(row)
  }
  return (
    <tr class={isAtCursor ? 'cursor' : ''} aria-current={isSelected ? 'true' : undefined} onClick={open}>
      <td data-label="Name">
        <button type="button" class="open" onClick={open}>
          <Name text={row.name} />
        </button>
        <KindTag kind={row.kind} />
        {row.mode === 'shared' && row.kind === 'lock' && <span class="tag">shared</span>}
        {row.weight !== undefined && (
          <span class="tag">
            {row.weight} of {row.capacity ?? '?'} permits
          </span>
        )}
        {row.metadata !== undefined && <span class="metadata">{visible(row.metadata.slice(0, 120))}</span>}
      </td>
      <td data-label="Holder">
        <HolderName holder={row.holder} foreign={row.foreign} />
      </td>
      <td data-label="State">
        <StateMark health={row.health} />
      </td>
      <td data-label="Held for">
        <Age since={row.since} />
      </td>
      <td data-label="Ends in">
        <Remaining row={row} />
      </td>
      <td data-label="Waiting" class={row.waiting > 0 && row.kind !== 'election' ? 'number waiting' : 'number'}>
        {row.waiting}
      </td>
      <td class="wide mono dim">{row.token ?? '–'}</td>
    </tr>
  )
}, sameRow)

/** A renewal makes a new row object; everything else of it stays. */
function sameRow(before: RowProps, after: RowProps): boolean {
  return before.row === after.row && before.isSelected === after.isSelected && before.isAtCursor === after.isAtCursor
}
