/** Stores opened by URL. */
import { expect, test } from 'vitest'
import { InvalidOptionError, openStore } from '../../src/index.js'

test('a URL of an unknown scheme is rejected with the list of known ones, and without its password', async () => {
  for (const url of ['mysql://root:s3cret@host/db', 'locks.db', '', undefined as unknown as string]) {
    const error = await openStore(url).catch((reason: unknown) => reason)
    expect(error).toBeInstanceOf(InvalidOptionError)
    expect(String(error)).toMatch(/store takes a URL that begins with one of memory, sqlite, redis/)
    expect(String(error)).not.toContain('s3cret')
  }
})
