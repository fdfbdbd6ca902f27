import { MissingPackageError } from '../../errors.js'
import type { Store } from '../../store.js'
import { unlessMissing } from '../../util/optional-import.js'
import { AdvisoryStore } from './store.js'

/** For `openStore('postgres+advisory://…')`: opens its own connections, and closes them with the store. */
export async function open(url: string): Promise<Store> {
  const pg = await loadPg()
  if (!pg) throw new MissingPackageError('a store on PostgreSQL advisory locks', ['pg'])
  const connectionString = url.replace(/^postgres(ql)?\+advisory:/, 'postgres:')
  // A pool that is never used opens no connection: it only says how.
  return new AdvisoryStore(new pg.default.Pool({ connectionString }), {})
}

async function loadPg(): Promise<typeof import('pg') | undefined> {
  try {
    return await import('pg')
  } catch (error) {
    return unlessMissing(error, 'pg')
  }
}
