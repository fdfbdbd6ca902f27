/** Who can be sent letters is told by what HELLO answers, which clients show in different shapes. */
import { describe, expect, test } from 'vitest'
import { canTakeMail } from '../../../src/clients/redis/adapter.js'

const shapes = {
  'a flat list': (facts: Record<string, unknown>) => Object.entries(facts).flat(),
  'a list of buffers': (facts: Record<string, unknown>) =>
    Object.entries(facts).flatMap(([name, fact]) => [Buffer.from(name), fact]),
  'a map': (facts: Record<string, unknown>) => new Map(Object.entries(facts)),
  'an object': (facts: Record<string, unknown>) => facts,
}

describe.each(Object.entries(shapes))('%s', (_name, shape) => {
  test('RESP3 on a server that has BLMPOP takes mail, and nothing else does', () => {
    expect(canTakeMail(shape({ server: 'redis', version: '7.0.15', proto: 3 }))).toBe(true)
    expect(canTakeMail(shape({ server: 'redis', version: '10.1.0', proto: 3 }))).toBe(true)
    expect(canTakeMail(shape({ server: 'redis', version: '6.2.14', proto: 3 }))).toBe(false)
    expect(canTakeMail(shape({ server: 'redis', version: '7.0.15', proto: 2 }))).toBe(false)
  })
})

test('an answer that says neither takes none', () => {
  expect(canTakeMail(null)).toBe(false)
  expect(canTakeMail([])).toBe(false)
})
