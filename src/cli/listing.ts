/** How holders and waiters are shown, to people and to programs. */
import { formatDuration } from '../kit/duration.js'
import { type HolderInfo, LOCK_KINDS, type WaiterInfo } from '../primitives/lookout.js'
import type { Input, OptionSpec } from './command.js'
import { table } from './output.js'

export const listingOptions: { kind: OptionSpec; json: OptionSpec } = {
  kind: { value: 'KIND', help: `one of ${LOCK_KINDS.join(', ')} (default lock)` },
  json: { help: 'for programs' },
}

export function kindFrom(input: Input): { kind?: string } {
  const kind = input.oneOf('kind', LOCK_KINDS)
  return kind === undefined ? {} : { kind }
}

/** With times also as what they are from now on, so that programs need no clock of their own. */
export function holderAsJson(holder: HolderInfo): Record<string, unknown> {
  return { ...holder, heldMs: heldMs(holder), remainingMs: remainingMs(holder) }
}

export function heldMs({ acquiredAt }: HolderInfo): number | undefined {
  return acquiredAt && Math.max(Date.now() - acquiredAt.getTime(), 0)
}

function remainingMs({ expiresAt }: HolderInfo): number | undefined {
  return expiresAt && Math.max(expiresAt.getTime() - Date.now(), 0)
}

export function tableOfHolders(holders: readonly HolderInfo[], short = false): string {
  return table(
    ['NAME', 'HOLDER', 'MODE', 'HELD', 'EXPIRES IN', 'WAITING', 'TOKEN', 'METADATA'],
    holders.map((one) => [
      one.kind === 'lock' ? one.name : `${one.kind}:${one.name}`,
      `${short ? shortened(one.holder) : one.holder}${one.foreign ? ' (foreign)' : ''}`,
      modeOf(one),
      roughly(heldMs(one)),
      one.expiresAt ? roughly(remainingMs(one)) : 'never',
      String(one.waiting),
      one.fencingToken === undefined ? '-' : String(one.fencingToken),
      metadataOf(one),
    ]),
  )
}

export function tableOfWaiters(waiters: readonly WaiterInfo[]): string {
  return table(
    ['IN LINE', 'WAITER', 'MODE', 'WAITED', 'METADATA'],
    waiters.map((one, place) => [String(place + 1), one.holder, modeOf(one), roughly(one.waitedMs), metadataOf(one)]),
  )
}

function modeOf({ kind, mode, weight }: HolderInfo | WaiterInfo): string {
  return kind === 'semaphore' ? `${weight} permit${weight === 1 ? '' : 's'}` : mode
}

/** Host and process are what people look for first; the rest is for `show` and --json. */
function shortened(holder: string): string {
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
