import { brand, UnsupportedError } from '../../errors.js'

/** The database has no schema that this code can work with. Asking again will not help. */
export class SchemaError extends UnsupportedError {
  static {
    brand(this, 'SchemaError')
  }
}

/** Undefined table, function or schema. */
export function isMissing(error: unknown): boolean {
  return ['42P01', '42883', '3F000'].includes((error as { code?: string }).code ?? '')
}
