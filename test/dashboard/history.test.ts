import { expect, test } from 'vitest'
import { LossHistory } from '../../src/dashboard/history.js'

test('the loss of a lock that was passed on inside its process is shown once, although store and process tell of it', () => {
  const history = new LossHistory()
  const holder = { holder: 'h:1:x/1', fencingToken: 100n, acquiredAt: new Date(0) }
  history.forced({ kind: 'lock', name: 'a', at: 1_000 } as never, [holder] as never)
  const loss = { at: 1_000, kind: 'lock', name: 'a', holder: 'h:1:x/1/3', token: '103', why: 'revoked', heldMs: 5 }
  history.published([{ skewMs: 0, stats: { losses: [loss] } }] as never)
  expect(history.views(1_000)).toMatchObject([{ origin: 'dashboard', why: 'revoked' }])
})
