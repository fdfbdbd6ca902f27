/**
 * The clock that all processes of one machine share, and the boot that it counts from.
 *
 * @module
 */
import { readFileSync } from 'node:fs'

/** A boot of a machine and its clock. */
export interface Machine {
  /** Differs after every boot. Empty: this system has no name for its boots, see `deleteRowsOfEarlierBoots`. */
  readonly boot: string
  /** Milliseconds since some moment of this boot, the same for all processes, whatever happens to the wall clock. */
  readonly now: () => number
}

/** A process that cannot tell its boot (no /proc) must not treat the leases of other processes as expired. */
export function mayBeSameBoot(one: string, other: string): boolean {
  return one === other || one === '' || other === ''
}

/**
 * The machine this process runs on. `process.hrtime` is the system's monotonic clock, with one zero for all processes.
 * Only Linux names its boots in a file; elsewhere rows with times in the future show that there was another boot.
 */
export function thisMachine(): Machine {
  const boot = firstLine('/proc/sys/kernel/random/boot_id')
  const offset = timeNamespaceOffset()
  const now = (): number => {
    const [seconds, nanoseconds] = process.hrtime()
    // Steps of 1/1024 ms are exact in binary: adding a ttl and subtracting it again gives the same time.
    return Math.floor((seconds * 1e3 + nanoseconds / 1e6 - offset) * 1024) / 1024
  }
  return { boot, now }
}

/**
 * A container may run in a time namespace, in which the same clock is shifted. Subtracting the shift gives the machine's
 * own reading, which processes outside of the container see too.
 */
function timeNamespaceOffset(): number {
  const [, seconds, nanoseconds] = firstLine('/proc/self/timens_offsets').split(/\s+/)
  return (Number(seconds) || 0) * 1e3 + (Number(nanoseconds) || 0) / 1e6
}

function firstLine(path: string): string {
  try {
    return (readFileSync(path, 'latin1').split('\n')[0] as string).trim()
  } catch {
    return ''
  }
}
