import { expect, test } from 'vitest'
import { Place } from './harness.js'

const place = new Place()

test.each(['redis://127.0.0.1:1', 'postgres://127.0.0.1:1/x'])(
  'run --wait on a server that is down (%s) ends in time, with the reason and without the password',
  async (url) => {
    const help = performance.now()
    await place.leasehold('--help').ended
    const startMs = performance.now() - help
    const began = performance.now()
    const store = url.replace('//', '//admin:hunter2@')
    const { code, stderr } = await place.leasehold('run', 'x', '--wait', '1s', '--store', store, '--', 'true').ended
    expect(code).toBe(69)
    expect(stderr).toContain('ECONNREFUSED 127.0.0.1:1')
    expect(stderr).not.toContain('hunter2')
    // A second of waiting, half a second of taking back, and what it takes to start twice over.
    expect(performance.now() - began).toBeLessThan(2_000 + 2 * startMs)
  },
)
