/** A dashboard on a free port, and processes that use the same store. */
import { type Server, createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterAll } from 'vitest'
import { type DashboardOptions, dashboard } from '../../src/dashboard/index.js'
import type { Locks } from '../../src/index.js'
import { type AtEnd, type Child, startChild } from '../../testbed/children.js'
import { type Browser, type Page, openBrowser } from '../../testbed/chromium.js'
import { startStopwatch } from '../../testbed/running-time.js'

export interface WorkerReport {
  ready?: true
  holds?: string
  holder?: string
  lost?: string
  atRisk?: string
  leads?: string
  term?: string
  ran?: string
  took?: string
  error?: string
}

export async function startWorker(url: string, atEnd: AtEnd, publish = ''): Promise<Child<WorkerReport>> {
  const child = startChild<WorkerReport>(new URL('./worker.child.ts', import.meta.url), [url, publish], atEnd)
  await child.until(({ ready }) => ready === true)
  return child
}

/** Serves the dashboard of these locks. Returns its address. */
export async function serve(locks: Locks, options: DashboardOptions, atEnd: AtEnd): Promise<string> {
  const handler = dashboard(locks, options)
  const server = createServer((request, response) => handler(request, response))
  const address = await listen(server)
  atEnd(() => {
    handler.close()
    server.closeAllConnections()
    server.close()
  })
  return `${address}/`
}

export async function listen(server: Server): Promise<string> {
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}

let browser: Promise<Browser> | undefined

type PageOptions = Parameters<Browser['newPage']>[0]

/** A page with cookies of its own. All pages of a test file share one browser. */
export async function newPage(atEnd: AtEnd, options: PageOptions = {}): Promise<Page> {
  browser ??= openBrowser()
  const page = await (await browser).newPage(options)
  atEnd(() => void page.close())
  // Far more than a page needs: what must be shown within a second is measured, and not waited for.
  page.setDefaultTimeout(30_000)
  return page
}

/** A page that shows the dashboard. */
export async function openPage(address: string, atEnd: AtEnd, options: PageOptions = {}): Promise<Page> {
  const page = await newPage(atEnd, options)
  await page.goto(address)
  await page.locator('.connection[data-state=live]').waitFor()
  return page
}

/** Counts the milliseconds in which the page could not do anything. */
const COUNT_STALLS = `
  globalThis.stalledMs = 0
  let last = performance.now()
  setInterval(() => {
    const now = performance.now()
    globalThis.stalledMs += Math.max(now - last - 40, 0)
    last = now
  }, 10)`

/**
 * How long it took until the promise resolved, without the times at which the server of the dashboard, which runs in this
 * process, or the page had no processor. What is left is what they waited for, or did too late.
 */
export async function shownWithin(page: Page, shown: () => Promise<unknown>): Promise<number> {
  await page.evaluate(`if (globalThis.stalledMs === undefined) { ${COUNT_STALLS} }`)
  const stalledMs = (): Promise<number> => page.evaluate<number>('globalThis.stalledMs')
  const before = await stalledMs()
  const watch = startStopwatch()
  await shown()
  const tookMs = watch.ms()
  watch.stop()
  return tookMs - ((await stalledMs()) - before)
}

export function closeBrowserAfterAll(): void {
  afterAll(async () => {
    await (await browser)?.close()
  })
}
