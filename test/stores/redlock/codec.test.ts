import { expect, test } from 'vitest'
import { decodeVotes } from '../../../src/stores/redlock/codec.js'

test('the time of a server is a vote for all, with the token that was sent', () => {
  const items = ['raised', 'raised']
  const reply = { standing: 'votes', counter: 7, micros: 1_700_000_000_000_000, items }
  expect(decodeVotes(1_700_000_000_000_000, 2, 7)).toEqual(reply)
  // Clients may be set to give integers as text.
  expect(decodeVotes('1700000000000000', 2, 7)).toEqual(reply)
})

test.each([null, undefined, 0, 1, -1, 250, '', 'QUEUED', 'OK', Number.NaN])('%o is no vote', (answer) => {
  expect(decodeVotes(answer, 1, 7)).toBeInstanceOf(Error)
})
