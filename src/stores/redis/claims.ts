import { ALL, type Claim } from '../../store.js'

const HALF_A_DAY_MS = 43_200_000

/** Redis counts whole milliseconds. Never more than asked for, and never none. */
export function wholeMs(ms: number): number {
  return Math.max(Math.floor(ms), 1)
}

/** acquire.lua says how. An exclusive claim without further wishes, the usual one, is written as short as can be. */
export function termsOfClaim({ weight, capacity, placeMs, announce, steal, value, ttlMs }: Claim): string {
  const place = placeMs !== undefined && placeMs > 0 ? String(wholeMs(placeMs)) : ''
  // Long leases take the long way, which sees to it that the index outlives them.
  if (weight === ALL && !announce && !steal && value === undefined && ttlMs < HALF_A_DAY_MS) return place
  const flags = `${announce ? 'a' : ''}${steal ? 's' : ''}${value === undefined ? '' : 'v'}`
  return `${weight}:${capacity}:${place || '0'}:${flags}:${value ?? ''}`
}
