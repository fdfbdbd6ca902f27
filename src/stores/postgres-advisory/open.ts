import { MissingPackageError } from '../../errors.js'
import type { Store } from '../../store.js'
import { unlessMissing } from '../../util/optional-import.js'
import { splitUrlOptions } from '../../util/url-options.js'
import { type AdvisoryOptions, advisory } from './index.js'

/**
 * For `openStore('postgres+advisory://…')`: opens its own connections, and closes them with the store. In the query of
 * the URL, `schema` and `timeout` are ours; everything else is the client's.
 */
export async function open(url: string): Promise<Store> {
  const pg = await loadPg()
  if (!pg) throw new MissingPackageError('a store on PostgreSQL advisory locks', ['pg'])
  const { rest, options } = splitUrlOptions(url, ['schema', 'timeout'])
  const connectionString = rest.replace(/^postgres(ql)?\+advisory:/, 'postgres:')
  // The pool opens no connection and need not be closed: the store reads from it only how to connect.
  return advisory(new pg.default.Pool({ connectionString }), options as AdvisoryOptions)
}

async function loadPg(): Promise<typeof import('pg') | undefined> {
  try {
    return await import('pg')
  } catch (error) {
    return unlessMissing(error, 'pg')
  }
}
