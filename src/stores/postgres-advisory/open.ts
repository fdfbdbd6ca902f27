import { LeaseholdError } from '../../errors.js'
import type { Store } from '../../store.js'
import { AdvisoryStore } from './store.js'

/** For `openStore('postgres+advisory://…')`: opens its own connections, and closes them with the store. */
export async function open(url: string): Promise<Store> {
  const { default: pg } = await import('pg').catch((error: { code?: string; message?: string }) => {
    if (error.code !== 'ERR_MODULE_NOT_FOUND' || !error.message?.includes("'pg'")) throw error
    throw new LeaseholdError('MISSING_PACKAGE', 'postgres+advisory:// needs a client package: npm install pg')
  })
  // A pool that is never used opens no connection: it only says how.
  return new AdvisoryStore(new pg.Pool({ connectionString: url.replace(/^postgres(ql)?\+advisory:/, 'postgres:') }), {})
}
