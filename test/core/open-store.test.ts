/** Stores by URL. */
import { expect, test } from 'vitest'
import { InvalidOptionError, openStore } from '../../src/index.js'

test('a URL that names no store is refused with those that do, and without its password', async () => {
  for (const url of ['mysql://root:s3cret@host/db', 'locks.db', '', undefined as unknown as string]) {
    const error = await openStore(url).catch((reason: unknown) => reason)
    expect(error).toBeInstanceOf(InvalidOptionError)
    expect(String(error)).toMatch(/store takes a URL that begins with one of memory, sqlite, redis/)
    expect(String(error)).not.toContain('s3cret')
  }
})
