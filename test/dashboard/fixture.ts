/** A dashboard on a free port, and processes that use the same store. */
import { type Server, createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterAll } from 'vitest'
import { type DashboardOptions, dashboard } from '../../src/dashboard/index.js'
import type { Locks } from '../../src/index.js'
import { type AtEnd, type Child, startChild } from '../../testbed/children.js'
import { type Browser, type Page, openBrowser } from '../../testbed/chromium.js'

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
  page.setDefaultTimeout(8_000)
  return page
}

/** A page that shows the dashboard. */
export async function openPage(address: string, atEnd: AtEnd, options: PageOptions = {}): Promise<Page> {
  const page = await newPage(atEnd, options)
  await page.goto(address)
  await page.locator('.connection[data-state=live]').waitFor()
  return page
}

export function closeBrowserAfterAll(): void {
  afterAll(async () => {
    await (await browser)?.close()
  })
}
