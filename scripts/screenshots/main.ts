// npm run screenshots: pictures of the dashboard for the README, in docs/images. Real processes on a real Redis for a minute.
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { dashboard } from '../../src/dashboard/index.js'
import { openLocks } from '../../src/index.js'
import { type Child, startChild } from '../../testbed/children.js'
import { openBrowser } from '../../testbed/chromium.js'
import { startRedis } from '../../testbed/servers/index.js'

const IMAGES = fileURLToPath(new URL('../../docs/images/', import.meta.url))
/** How long the shop works before the pictures are taken, in seconds. The charts show five minutes. */
const SECONDS = Number(process.argv[2] ?? 90)

const redis = await startRedis()
const locks = await openLocks(redis.url)
const handler = dashboard(locks, { title: 'redis://orders.internal:6379', allowRelease: true })
const server = createServer((request, response) => handler(request, response))
await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
const { port } = server.address() as AddressInfo

const shop: Child<object>[] = []
process.on('exit', () => shop.forEach((child) => child.kill('SIGKILL')))
for (const [host, role] of [
  ['web-1', 'web'],
  ['web-2', 'web'],
  ['worker-1', 'worker'],
  ['worker-2', 'worker'],
  ['batch-7', 'legacy'],
  ['ci-2', 'deploy'],
]) {
  const child = startChild<object>(new URL('./shop.ts', import.meta.url), [redis.url, host as string, role as string])
  await child.next()
  shop.push(child)
}

const browser = await openBrowser()
const page = await browser.newPage({ viewport: { width: 1280, height: 800 }, colorScheme: 'light', timezoneId: 'UTC' })
await page.goto(`http://127.0.0.1:${port}/`)
for (let passed = 0; passed < SECONDS; passed += 15) {
  await sleep(15_000)
  const [victim] = await locks.holders('invoice:')
  if (victim && passed % 30 === 0) await locks.forceRelease(victim.name)
}
// The migration hangs: it falls silent, and a deployment waits for it.
shop[4]?.kill('SIGSTOP')
await page.locator('tr', { hasText: 'migrate:customers' }).filter({ hasText: 'silent' }).waitFor({ timeout: 30_000 })

const picture = (name: string): Promise<Buffer> => page.screenshot({ path: `${IMAGES}${name}.png` })
for (const scheme of ['light', 'dark'] as const) {
  await page.emulateMedia({ colorScheme: scheme })
  await page.keyboard.press('1')
  await page.getByRole('button', { name: 'migrate:customers' }).first().click()
  await page.locator('ol.queue li').first().waitFor()
  await picture(`dashboard-${scheme}`)
  await page.keyboard.press('Escape')
  await page.keyboard.press('2')
  await sleep(700)
  await picture(`contention-${scheme}`)
  await page.keyboard.press('3')
  await sleep(300)
  await picture(`losses-${scheme}`)
}
const phone = await browser.newPage({ viewport: { width: 390, height: 844 }, colorScheme: 'dark', timezoneId: 'UTC' })
await phone.goto(page.url().replace(/#.*/, ''))
await phone.locator('tr', { hasText: 'migrate:customers' }).waitFor()
await phone.getByText(/processes publish/).waitFor()
await phone.screenshot({ path: `${IMAGES}phone-dark.png` })
await browser.close()
await locks.close({ grace: 0 })
await redis.stop()
console.log(`written to ${IMAGES}`)
process.exit(0)
