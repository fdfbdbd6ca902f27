/**
 * Why something failed, in one line.
 *
 * @module
 */

/**
 * The message of an error, with the code and address of each attempt: a host with several addresses fails with an
 * `AggregateError` whose own message is empty.
 */
export function reasonOf(error: unknown): string {
  if (typeof error !== 'object' || error === null) return String(error)
  const { message, name, code, errors, lastNodeError } = error as {
    message?: string
    name?: string
    code?: unknown
    errors?: unknown
    /** Of ioredis: "Failed to refresh slots cache." alone helps nobody. */
    lastNodeError?: unknown
  }
  if (message && lastNodeError) return `${message} ${reasonOf(lastNodeError)}`
  if (message) return message
  if (Array.isArray(errors) && errors.length > 0) return [...new Set(errors.map(reasonOf))].join('; ')
  return String(code ?? name ?? 'no reason given')
}
