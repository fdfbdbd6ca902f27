/**
 * Packages that only some users need.
 *
 * Each is imported where it is used, inside `try` and by its literal name: bundlers then know that it may be missing, and
 * carry on without it.
 *
 * @module
 */

/** For the `catch` of an import: undefined if exactly this package is not installed; any other failure is a failure. */
export function unlessMissing(error: unknown, name: string): undefined {
  const { code, message } = error as { code?: unknown; message?: unknown }
  // Node says ERR_MODULE_NOT_FOUND for import and MODULE_NOT_FOUND for require; Bun, Deno and Jest have words of their own.
  const missing =
    code === 'ERR_MODULE_NOT_FOUND' ||
    code === 'MODULE_NOT_FOUND' ||
    /cannot find|could not (resolve|find)|not found/i.test(String(message))
  if (missing && new RegExp(`['"\`/]${name}['"\`@ ]|${name}$`, 'm').test(String(message))) return undefined
  throw error
}
