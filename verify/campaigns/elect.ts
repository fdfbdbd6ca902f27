/** `leasehold elect`: 500 terms on SQLite, Redis and PostgreSQL of commands that are hard to end, 0 overlaps. */
import type { Proving } from './proving.js'
import { proveHandoffs } from './run.js'

export default function prove(p: Proving): Promise<void> {
  return proveHandoffs(p, 'elect')
}
