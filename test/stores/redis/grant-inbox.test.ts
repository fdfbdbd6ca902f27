/** Whether grants can be pushed to a list is read from the reply to HELLO, which clients return in different shapes. */
import { describe, expect, test } from 'vitest'
import { canPopGrants } from '../../../src/clients/redis/adapter.js'

const shapes = {
  'a flat list': (facts: Record<string, unknown>) => Object.entries(facts).flat(),
  'a list of buffers': (facts: Record<string, unknown>) =>
    Object.entries(facts).flatMap(([name, fact]) => [Buffer.from(name), fact]),
  'a map': (facts: Record<string, unknown>) => new Map(Object.entries(facts)),
  'an object': (facts: Record<string, unknown>) => facts,
}

describe.each(Object.entries(shapes))('%s', (_name, shape) => {
  test('only RESP3 on a server that has BLMPOP supports a grant inbox', () => {
    expect(canPopGrants(shape({ server: 'redis', version: '7.0.15', proto: 3 }))).toBe(true)
    expect(canPopGrants(shape({ server: 'redis', version: '10.1.0', proto: 3 }))).toBe(true)
    expect(canPopGrants(shape({ server: 'redis', version: '6.2.14', proto: 3 }))).toBe(false)
    expect(canPopGrants(shape({ server: 'redis', version: '7.0.15', proto: 2 }))).toBe(false)
  })
})

test('a reply without version and protocol supports no grant inbox', () => {
  expect(canPopGrants(null)).toBe(false)
  expect(canPopGrants([])).toBe(false)
})
