/**
 * What an error of `pg` or postgres.js says about the server and the connection.
 *
 * @module
 */
import type { PgError } from './types.js'

/** SQLSTATE of an error of the server, the system's code of a socket error, or undefined. */
export function errorCode(error: unknown): string | undefined {
  return (error as { code?: string } | null | undefined)?.code
}

/**
 * Whether the connection is gone, rather than one statement refused. The server closes the connection after FATAL and
 * after the classes 08 and 57P; an error without a severity was not sent by the server at all.
 */
export function isConnectionLost(error: unknown): boolean {
  const { code, severity } = (error ?? {}) as PgError
  if (severity === undefined || code === undefined) return true
  return severity !== 'ERROR' || /^(08|57P)/.test(code)
}

/** Explanations by SQLSTATE that are the same for every store on PostgreSQL. */
export const SERVER_REASONS: Readonly<Record<string, string>> = {
  '53300': 'the server takes no more connections (see max_connections)',
  '57P01': 'the server is shutting down, or an administrator ended the connection',
  '57P02': 'the server crashed',
  '57P03': 'the server is starting up or shutting down',
}
