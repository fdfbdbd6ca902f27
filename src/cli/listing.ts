/** How holders and waiters are shown, to people and to programs. */
import { formatDuration } from '../util/duration.js'
import { type HolderInfo, LOCK_KINDS, type WaiterInfo } from '../primitives/inspect.js'
import type { Input, OptionSpec } from './command.js'
import { Table, table } from './output.js'

export const listingOptions: { kind: OptionSpec; json: OptionSpec } = {
  kind: { value: 'KIND', help: `one of ${LOCK_KINDS.join(', ')} (default lock)`, words: LOCK_KINDS },
  json: { help: 'for programs' },
}

/** Of commands that list: they take several kinds at once, too. */
export const anyKindOption: OptionSpec = {
  value: 'KIND',
  help: `one of ${LOCK_KINDS.join(', ')}, all (default lock)`,
  words: [...LOCK_KINDS, 'all'],
}

export function kindsFrom(input: Input): readonly string[] {
  const kind = input.oneOf('kind', [...LOCK_KINDS, 'all']) ?? 'lock'
  return kind === 'all' ? LOCK_KINDS : [kind]
}

export function kindFrom(input: Input): { kind?: string } {
  const kind = input.oneOf('kind', LOCK_KINDS)
  return kind === undefined ? {} : { kind }
}

/** Adds durations up to now and from now on, so that programs need no clock of their own. */
export function holderAsJson(holder: HolderInfo): Record<string, unknown> {
  return { ...holder, heldMs: heldMs(holder), remainingMs: remainingMs(holder) }
}

export function heldMs({ acquiredAt }: HolderInfo): number | undefined {
  return acquiredAt && Math.max(Date.now() - acquiredAt.getTime(), 0)
}

function remainingMs({ expiresAt }: HolderInfo): number | undefined {
  return expiresAt && Math.max(expiresAt.getTime() - Date.now(), 0)
}

const TITLES = ['NAME', 'HOLDER', 'MODE', 'HELD', 'EXPIRES IN', 'WAITING', 'TOKEN', 'METADATA']

export function tableOfHolders(holders: readonly HolderInfo[]): string {
  return table(
    TITLES,
    holders.map((one) => rowOf(one, one.holder)),
  )
}

/** Page by page, with short names of holders. */
export class HolderTable {
  readonly #table = new Table(TITLES)

  page(holders: readonly HolderInfo[]): string {
    return this.#table.page(holders.map((one) => rowOf(one, shortened(one.holder))))
  }
}

function rowOf(one: HolderInfo, holder: string): string[] {
  return [
    one.kind === 'lock' ? one.name : `${one.kind}:${one.name}`,
    `${holder}${one.foreign ? ' (foreign)' : ''}`,
    modeOf(one),
    heldFor(one),
    expiresIn(one),
    String(one.waiting),
    one.fencingToken === undefined ? '-' : String(one.fencingToken),
    metadataOf(one),
  ]
}

export function tableOfWaiters(waiters: readonly WaiterInfo[]): string {
  return table(
    ['QUEUE', 'WAITER', 'MODE', 'WAITED', 'METADATA'],
    waiters.map((one, index) => [String(index + 1), one.holder, modeOf(one), roughly(one.waitedMs), metadataOf(one)]),
  )
}

function modeOf({ kind, mode, weight }: HolderInfo | WaiterInfo): string {
  return kind === 'semaphore' ? `${weight} permit${weight === 1 ? '' : 's'}` : mode
}

export function heldFor(one: HolderInfo): string {
  return roughly(heldMs(one))
}

export function expiresIn(one: HolderInfo): string {
  return one.expiresAt ? roughly(remainingMs(one)) : 'never'
}

/** The host and process of a holder, which people look for first; `show` and --json have the rest. */
export function shortened(holder: string): string {
  return holder.replace(/:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\/\d+$/, '')
}

function roughly(ms: number | undefined): string {
  return ms === undefined ? '?' : formatDuration(Math.round(ms))
}

function metadataOf({ metadata }: { metadata: unknown }): string {
  if (metadata === undefined || metadata === null) return ''
  const text = typeof metadata === 'string' ? metadata : JSON.stringify(metadata)
  return text.length > 60 ? `${text.slice(0, 60)}…` : text
}
