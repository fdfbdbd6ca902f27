/**
 * The clock that all processes of one machine share.
 *
 * @module
 */
import { readFileSync } from 'node:fs'

/** A boot of a machine and its clock. */
export interface Machine {
  /** Differs after every boot. Empty: this system has no name for it, see `forgetEarlierBoot`. */
  readonly boot: string
  /** Milliseconds since some moment of this boot, the same for all processes, whatever happens to the wall clock. */
  readonly now: () => number
}

/** A process that cannot tell its boot (no /proc) must not take those of others for dead. */
export function mayBeSameBoot(one: string, other: string): boolean {
  return one === other || one === '' || other === ''
}

/**
 * The machine we run on. `process.hrtime` is the system's monotonic clock, with one zero for all processes.
 * Only Linux names its boots in a file; elsewhere rows that come from the future tell that there was another.
 */
export function thisMachine(): Machine {
  const boot = firstLine('/proc/sys/kernel/random/boot_id')
  const offset = timeNamespaceOffset()
  const now = (): number => {
    const [seconds, nanoseconds] = process.hrtime()
    // In steps that a binary fraction can hold: adding a ttl and taking it away again must give the same time.
    return Math.floor((seconds * 1e3 + nanoseconds / 1e6 - offset) * 1024) / 1024
  }
  return { boot, now }
}

/** A container may live in a time namespace, where the same clock reads otherwise: go back to the machine's own. */
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
