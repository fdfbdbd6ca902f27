// The dashboard with 5,000 held locks: frame times, filter times, delay until a change is shown, and what the store sees of it.
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { dashboard } from '../../src/dashboard/index.js'
import { openLocks } from '../../src/index.js'
import { randomFrom } from '../../testbed/random.js'
import { type Page, openBrowser } from '../../testbed/chromium.js'
import { startRedis } from '../../testbed/servers/index.js'
import type { Proving } from './proving.js'

const LOCKS = 5_000
/**
 * A change is missed by the listing that goes on, then comes a pause as long as it took, then the listing that finds it. One more
 * for what the page takes. Listings are timed in the same run, so that a busy machine slows both sides.
 */
const LISTINGS = 4

/** Records the time between frames until it is asked for them. */
const RECORD_FRAMES = `(() => {
  window.frames_ = []
  let last = performance.now()
  const next = (now) => { window.frames_.push(now - last); last = now; requestAnimationFrame(next) }
  requestAnimationFrame(next)
})()`

const FILTER = (text: string): string => `(async () => {
  const input = document.getElementById('search')
  const begun = performance.now()
  input.value = ${JSON.stringify(text)}
  input.dispatchEvent(new InputEvent('input', { bubbles: true }))
  await new Promise((resolve) => requestAnimationFrame(resolve))
  void document.body.offsetHeight
  return [performance.now() - begun, document.querySelectorAll('tbody tr').length]
})()`

function percentile(values: readonly number[], share: number): number {
  const sorted = [...values].sort((a, b) => a - b)
  return sorted[Math.min(Math.floor(share * sorted.length), sorted.length - 1)] ?? Number.NaN
}

const figures = (values: readonly number[]): string =>
  `p50 ${percentile(values, 0.5).toFixed(1)} ms, p95 ${percentile(values, 0.95).toFixed(1)} ms, most ${Math.max(...values).toFixed(1)} ms, n=${values.length}`

export default async function campaign(proving: Proving): Promise<void> {
  const random = randomFrom(proving.seed)
  const redis = await startRedis()
  const reads = { count: 0 }
  const locks = await openLocks(redis.url, { ttl: '30s' })
  const reader = await openLocks(redis.url, { onCall: () => reads.count++ })
  const handler = dashboard(reader)
  const server = createServer((request, response) => handler(request, response))
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const browser = await openBrowser()
  try {
    const held: { release(): Promise<boolean> }[] = []
    for (let i = 0; i < LOCKS; i += 100) {
      const names = Array.from({ length: 100 }, (_, j) => `${(i + j) % 2 ? 'order' : 'invoice'}:${i + j}`)
      held.push(...(await Promise.all(names.map((name) => locks.acquire(name, { metadata: { name } })))))
    }
    const page = await browser.newPage({ viewport: { width: 1_360, height: 820 } })
    await page.goto(`http://127.0.0.1:${(server.address() as AddressInfo).port}/`)
    await page.getByText(`of ${LOCKS.toLocaleString('en-US')} holders`).waitFor({ timeout: 30_000 })
    await page.evaluate(RECORD_FRAMES)
    const delays: number[] = []
    const listings: number[] = []
    const filters: number[] = []
    let rows = 0
    const end = performance.now() + proving.seconds * 1_000
    for (let i = 0; performance.now() < end; i++) {
      const digits = String(Math.floor(random() * LOCKS)).slice(0, 1 + Math.floor(random() * 4))
      const [ms, shown] = await page.evaluate<[number, number]>(FILTER(random() < 0.5 ? `order:${digits}` : digits))
      filters.push(ms)
      rows = Math.max(rows, shown)
      if (i % 5 > 0) continue
      delays.push(await shownAfter(page, `fresh:${i}`, (name) => locks.acquire(name)))
      const begun = performance.now()
      for await (const _ of reader.holderPages());
      listings.push(performance.now() - begun)
    }
    await page.evaluate(FILTER(''))
    const frames = await page.evaluate<number[]>('window.frames_')
    proving.check(
      'a filter over 5,000 locks answers below 100 ms (p95)',
      percentile(filters, 0.95) < 100,
      figures(filters),
    )
    proving.check('at most 200 rows are in the document', rows <= 200, `${rows}`)
    proving.check('95 of 100 frames take less than 50 ms', percentile(frames, 0.95) < 50, figures(frames))
    const shown = percentile(delays, 0.5) / percentile(listings, 0.5)
    proving.check(
      `a new lock among 5,000 is shown within the time of ${LISTINGS} listings (p50)`,
      shown < LISTINGS,
      `${shown.toFixed(1)} listings; shown after ${figures(delays)}; a listing takes ${figures(listings)}`,
    )
    const one = await readsOf(reads)
    for (let i = 0; i < 9; i++) await (await browser.newPage()).goto(page.url())
    const ten = await readsOf(reads)
    proving.check('ten pages cost the store no more than one', ten < one * 1.5, `${ten} against ${one} reads a second`)
    await browser.close()
    const none = await readsOf(reads)
    proving.check('without a page the store is not read', none === 0, `${none} reads a second`)
  } finally {
    await browser.close()
    handler.close()
    server.closeAllConnections()
    server.close()
    await Promise.all([locks.close({ grace: 0 }), reader.close({ grace: 0 })])
    await redis.stop()
  }
}

/** Milliseconds from the moment when this process holds the lock until the page shows it. */
async function shownAfter(page: Page, name: string, acquire: (name: string) => Promise<unknown>): Promise<number> {
  await page.evaluate(FILTER(name))
  await acquire(name)
  const begun = performance.now()
  await page.locator('tbody tr', { hasText: name }).waitFor({ timeout: 30_000 })
  return performance.now() - begun
}

/** Listings and their pages a second, once those of closed pages have ended. */
async function readsOf(reads: { count: number }): Promise<number> {
  const seconds = 5
  await new Promise((resolve) => setTimeout(resolve, 2_000))
  const before = reads.count
  await new Promise((resolve) => setTimeout(resolve, seconds * 1_000))
  return Math.round((reads.count - before) / seconds)
}
