/** The user that servers run as which refuse root. */
import { readFileSync } from 'node:fs'

export interface SystemUser {
  uid: number
  gid: number
}

/** The user that runs PostgreSQL and PgBouncer: both refuse root. Undefined unless this process is root. */
export function unprivilegedUser(): SystemUser | undefined {
  if (process.getuid?.() !== 0) return undefined
  const accounts = readFileSync('/etc/passwd', 'utf8').split('\n')
  const account =
    accounts.find((line) => line.startsWith('postgres:')) ?? accounts.find((line) => line.startsWith('nobody:'))
  if (!account) throw new Error('PostgreSQL does not run as root, and there is neither a user postgres nor nobody')
  const [, , uid, gid] = account.split(':')
  return { uid: Number(uid), gid: Number(gid) }
}
