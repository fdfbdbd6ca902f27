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
  setTimeout(() => stop.abort(), 700).unref()
  await locks.election('e').run(({ signal }) => aborted(signal), { signal: stop.signal, ...options })
  say('resigned')
} else {
  const job = locks.schedule('s', '* * * * * *', () => {}, options)
  job.on('finished', () => {
    say('ran')
    void job.stop()
  })
}
