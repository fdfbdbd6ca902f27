/** A program whose only work is an election or a schedule. It stops that work after a while, if it is still running. */
import { createLocks, memory } from '../../src/index.js'
import { sqlite } from '../../src/stores/sqlite/index.js'

const [what, where = ':', unref] = process.argv.slice(2)
const locks = createLocks(where === 'memory' ? memory() : sqlite(where))
const say = (line: unknown): void => console.log(JSON.stringify(line))
const options = unref === 'unref' ? { unref: true } : {}
const aborted = (signal: AbortSignal): Promise<unknown> =>
  new Promise((resolve) => signal.addEventListener('abort', resolve))

if (what === 'election') {
  const stop = new AbortController()
  // With unref the process has nothing to wait for, and must have ended long before.
  setTimeout(() => stop.abort(), unref === 'unref' ? 60_000 : 700).unref()
  await locks.election('e').run(({ signal }) => aborted(signal), { signal: stop.signal, ...options })
  say('resigned')
} else {
  // With unref a tick in the next second could be due before the process has ended.
  const job = locks.schedule('s', unref === 'unref' ? '0 0 1 1 *' : '* * * * * *', () => {}, options)
  job.on('finished', () => {
    say('ran')
    void job.stop()
  })
}
