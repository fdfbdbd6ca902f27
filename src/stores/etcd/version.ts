/**
 * Which servers keep leases as the store needs it.
 *
 * @module
 */

/** The first patch of each minor version in which a former leader revokes nothing any more (etcd issue 15247). */
const FIRST_GOOD_PATCH: Readonly<Record<number, number>> = { 4: 31, 5: 13 }

/** What an outdated server does, for people. */
export const OUTDATED =
  'a leader that was frozen for longer than a ttl revokes leases that its successor keeps alive, so that a lock ends while it is held'

/** Shown besides the version. */
export const GOOD_VERSIONS = '3.4.31, 3.5.13 or later'

export function isOutdated(version: string): boolean {
  const parts = /^(\d+)\.(\d+)\.(\d+)/.exec(version)
  if (!parts) return false
  const [major, minor, patch] = parts.slice(1).map(Number) as [number, number, number]
  if (major !== 3) return major < 3
  return minor < 4 || patch < (FIRST_GOOD_PATCH[minor] ?? 0)
}

let warned = false

/** Once per process, however many stores and clusters it uses. */
export function warnIfOutdated(endpoint: string, version: string): void {
  if (warned || !isOutdated(version)) return
  warned = true
  const fix = `Update etcd to ${GOOD_VERSIONS}`
  process.emitWarning(`etcd ${version} at ${endpoint}: ${OUTDATED}. ${fix}.`, 'LeaseholdWarning')
}
