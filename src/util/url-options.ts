/**
 * Options in the query of a store's URL, beside those of the client library.
 *
 * @module
 */
import { suggestion, unknownWord } from './options.js'

/** Parameters of the client libraries that look like a typing mistake in one of ours. */
const NOT_OURS: readonly string[] = ['connect_timeout', 'statement_timeout', 'query_timeout', 'lock_timeout']

/**
 * Takes our own parameters out of a URL. The others are the client's and stay, but one that looks like ours with a typing
 * mistake is refused: a client library ignores what it does not know.
 */
export function splitUrlOptions(
  url: string,
  own: readonly string[],
): { rest: string; options: Record<string, string> } {
  const [address = '', query = ''] = url.split(/\?(.*)/s)
  const parameters = new URLSearchParams(query)
  const options: Record<string, string> = {}
  for (const name of [...parameters.keys()]) {
    if (own.includes(name)) {
      options[name] = parameters.get(name) as string
      parameters.delete(name)
    } else if (suggestion(name, own) !== undefined && !NOT_OURS.includes(name)) {
      throw unknownWord('option', name, own)
    }
  }
  return { rest: parameters.size > 0 ? `${address}?${parameters.toString()}` : address, options }
}
