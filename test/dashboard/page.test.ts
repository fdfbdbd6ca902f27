/** The page in a real Chromium, with other processes on a real Redis. */
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest'
import { createLocks, type Locks, memory, openLocks } from '../../src/index.js'
import { temporaryFolder } from '../../testbed/children.js'
import type { Page } from '../../testbed/chromium.js'
import { type RedisServer, startEtcd, startRedis } from '../../testbed/servers/index.js'
import { closeBrowserAfterAll, newPage, openPage, serve, shownWithin, startWorker } from './fixture.js'

let server: RedisServer
let locks: Locks
beforeAll(async () => {
  server = await startRedis()
  locks = await openLocks(server.url)
})
closeBrowserAfterAll()
afterAll(async () => {
  await locks?.close()
  await server?.stop()
})

const row = (page: Page, name: string) => page.locator('table.holders tbody tr', { hasText: name })

/** Waits until the page shows it, and returns how long that took, without stalls of the machine. */
async function shownAfter(page: Page, name: string, expected: RegExp): Promise<number> {
  return shownWithin(page, () => row(page, name).filter({ hasText: expected }).first().waitFor())
}

test('the page shows within a second that other processes acquire, wait, are cut off and lose', async () => {
  const page = await openPage(await serve(locks, {}, onTestFinished), onTestFinished)
  const [one, two] = [
    await startWorker(server.url, onTestFinished, '1s'),
    await startWorker(server.url, onTestFinished),
  ]
  const pid = (child: { pid: number }): RegExp => new RegExp(`· ${child.pid}`)
  one.tell({ do: 'acquire', name: 'order:1', metadata: { job: 'charge' } })
  await one.until(({ holds }) => holds === 'order:1')
  expect(await shownAfter(page, 'order:1', pid(one))).toBeLessThan(1_000)

  two.tell({ do: 'acquire', name: 'order:1' })
  await expect.poll(async () => (await locks.waiters('order:1')).length, { interval: 5 }).toBe(1)
  const waiting = row(page, 'order:1').locator('td.waiting', { hasText: '1' })
  expect(await shownWithin(page, () => waiting.waitFor())).toBeLessThan(1_000)

  // Cut off by force: the waiter gets it, and the former holder publishes its loss.
  await locks.forceRelease('order:1')
  expect(await shownAfter(page, 'order:1', pid(two))).toBeLessThan(1_000)
  await one.until(({ lost }) => lost === 'order:1')
  const lost = page.locator('.figure', { hasText: 'lost' }).getByText('1', { exact: true })
  expect(await shownWithin(page, () => lost.waitFor())).toBeLessThan(1_000)

  // Frozen: it falls silent, and loses the lock to the next waiter when its time has passed.
  one.tell({ do: 'acquire', name: 'order:1' })
  await expect.poll(async () => (await locks.waiters('order:1')).length, { interval: 5 }).toBe(1)
  two.kill('SIGSTOP')
  await shownAfter(page, 'order:1', /silent/)
  await one.until(({ holds }) => holds === 'order:1')
  expect(await shownAfter(page, 'order:1', pid(one))).toBeLessThan(1_000)
  await page.getByRole('link', { name: 'Losses' }).click()
  const losses = page.locator('table.losses tbody tr')
  await losses
    .filter({ hasText: 'ran out' })
    .filter({ hasText: pid(two) })
    .waitFor()
  await losses
    .filter({ hasText: 'forced' })
    .filter({ hasText: 'revoked' })
    .filter({ hasText: pid(one) })
    .waitFor()
  await page.getByRole('img', { name: /1 forced, 0 lost, 1 ran out/ }).waitFor()

  // Killed: its process does not exist any more, before its lease has ended.
  one.kill('SIGKILL')
  await page.getByRole('link', { name: 'Locks' }).click()
  await one.ended
  expect(await shownAfter(page, 'order:1', /gone/)).toBeLessThan(1_000)
})

test('a lock whose renewals fail is shown at risk at once, in words, and its loss with what happened before', async () => {
  await server.command('ACL', 'SETUSER', 'worker', 'on', '>secret', '~*', '&*', '+@all')
  const page = await openPage(await serve(locks, {}, onTestFinished), onTestFinished)
  const worker = await startWorker(server.url.replace('://', '://worker:secret@'), onTestFinished, '30s')
  worker.tell({ do: 'acquire', name: 'risk:1', ttl: '6s' })
  await worker.until(({ holds }) => holds === 'risk:1')
  // All keys but those of locks: renewals fail, and figures can still be published.
  await server.command('ACL', 'SETUSER', 'worker', 'resetkeys', '~[^l]*', '~l[^o]*')
  await worker.until(({ atRisk }) => atRisk === 'risk:1')
  const alert = page.getByRole('alert').getByText('1 lock is at risk')
  expect(await shownWithin(page, () => alert.waitFor())).toBeLessThan(1_000)
  await row(page, 'risk:1').getByText('at risk').waitFor()
  await page.locator('select', { hasText: 'any holder' }).selectOption('at-risk')
  await row(page, 'risk:1').getByRole('button', { name: 'risk:1' }).click()
  await page.getByRole('complementary').getByText('Its process says that its renewals fail').waitFor()
  await page.keyboard.press('Escape')

  await worker.until(({ lost }) => lost === 'risk:1')
  await page.keyboard.press('3')
  const loss = page.locator('table.losses tbody tr', { hasText: 'risk:1' }).filter({ hasText: 'unreachable' })
  await loss.getByText('renewals were not answered in time').waitFor()
  await loss.getByText('What happened before').click()
  // On a busy machine it may have stood still for a moment, and then the page says for how long.
  await loss.getByText(/The event loop of its process (was not seen to stand still\.|stood still for)/).waitFor()
  await loss
    .getByText(/Renewal sent .* before: failed: .*NOPERM/)
    .first()
    .waitFor()
  await page.getByRole('alert').waitFor({ state: 'detached' })
  worker.kill('SIGKILL')
})

test('the panel tells how we know that a holder is alive, when it ends, who waits, and what releasing would do', async () => {
  const page = await openPage(await serve(locks, {}, onTestFinished), onTestFinished)
  const [one, two] = [
    await startWorker(server.url, onTestFinished, '1s'),
    await startWorker(server.url, onTestFinished),
  ]
  one.tell({ do: 'acquire', name: 'panel:1' })
  await one.until(({ holds }) => holds === 'panel:1')
  two.tell({ do: 'acquire', name: 'panel:1' })
  await page.keyboard.press('/')
  await page.keyboard.type('panel:')
  await row(page, 'panel:1').waitFor()
  await page.keyboard.press('Enter')
  const panel = page.getByRole('complementary', { name: 'Details of panel:1' })
  await panel.getByText(/Its lease was renewed .* ago, as seen in the store/).waitFor()
  await panel.getByText('Its process publishes its figures.').waitFor()
  await panel.getByText(`Process ${one.pid} runs on this host.`).waitFor()
  await panel.getByText(/Ends by itself in .* s unless it is renewed again/).waitFor()
  await panel.locator('ol.queue li', { hasText: String(two.pid) }).waitFor()
  await panel.getByText(new RegExp(`· ${two.pid}, the first of 1 waiter, gets it right away`)).waitFor()
  await panel.getByText('This dashboard only shows.').waitFor()
  expect(await panel.getByRole('button', { name: /release/i }).count()).toBe(0)
  await page.keyboard.press('Escape')
  await panel.waitFor({ state: 'detached' })
})

test('with allowRelease the button takes a lock away after a question, and the page lists it', async () => {
  const actions: object[] = []
  const options = { allowRelease: true, onAction: (action: object) => actions.push(action) }
  const page = await openPage(await serve(locks, options, onTestFinished), onTestFinished)
  const lock = await locks.acquire('stuck:1')
  const aborted = new Promise((resolve) => lock.signal.addEventListener('abort', resolve))
  await row(page, 'stuck:1').getByRole('button', { name: 'stuck:1' }).click()
  await page.getByRole('button', { name: 'Release…' }).click()
  await page.getByRole('button', { name: 'Yes, take it away' }).click()
  await page.getByText('Nobody holds it right now.').waitFor()
  await aborted
  expect(actions).toMatchObject([{ kind: 'lock', name: 'stuck:1', by: '127.0.0.1', holders: [lock.holder] }])
  await page.keyboard.press('Escape')
  await page.keyboard.press('3')
  await page.getByRole('heading', { name: 'Released with this dashboard' }).waitFor()
})

test('elections, schedules, limiters, semaphores and processes are shown with what is published', async () => {
  // A store of its own: what killed processes published in the other tests stays there for some seconds.
  const url = `sqlite:${temporaryFolder(onTestFinished)}/locks.db`
  const own = await openLocks(url)
  onTestFinished(() => own.close({ grace: 0 }))
  const page = await openPage(await serve(own, {}, onTestFinished), onTestFinished)
  await page.getByRole('link', { name: 'Limiters' }).click()
  await page.getByText('No process publishes.').waitFor()
  const worker = await startWorker(url, onTestFinished, '1s')
  for (const [order, name] of [
    ['lead', 'reports'],
    ['permit', 'pool'],
    ['schedule', 'nightly'],
    ['take', 'api'],
  ]) {
    worker.tell({ do: order, name })
  }
  await worker.until(({ ran }) => ran === 'nightly')
  await page
    .locator('main tr', { hasText: 'api' })
    .filter({ hasText: '3 per 1.0 min' })
    .filter({ hasText: '40 %' })
    .waitFor()
  await page.keyboard.press('4')
  await page
    .locator('main tr', { hasText: 'reports' })
    .filter({ hasText: 'leads' })
    .filter({ hasText: String(worker.pid) })
    .waitFor()
  await page.keyboard.press('5')
  await page
    .locator('main tr', { hasText: 'nightly' })
    .filter({ hasText: 'finished' })
    .filter({ hasText: '* * * * * *' })
    .waitFor()
  await page.keyboard.press('7')
  await page
    .locator('main tr', { hasText: String(worker.pid) })
    .filter({ hasText: 'every 1.0 s' })
    .waitFor()
  await page.keyboard.press('1')
  await row(page, 'pool').filter({ hasText: '2 of 5 permits' }).waitFor()
  await page.keyboard.press('2')
  await page.getByRole('img', { name: /^Time waited.*p50/ }).waitFor()
  worker.kill('SIGKILL')
})

test('on etcd the page shows holders, their queue and leaders, and says that there are no limiters', async () => {
  const etcd = await startEtcd()
  onTestFinished(() => etcd.stop())
  const own = await openLocks(etcd.url)
  onTestFinished(() => own.close({ grace: 0 }))
  await own.acquire('order:1')
  const waiting = own.acquire('order:1', { wait: '30s' }).catch(() => {})
  void own.election('reports').run(({ signal }) => new Promise((resolve) => signal.addEventListener('abort', resolve)))
  const page = await openPage(await serve(own, {}, onTestFinished), onTestFinished)
  await row(page, 'order:1').getByRole('button', { name: 'order:1' }).click()
  await page.locator('ol.queue li', { hasText: String(process.pid) }).waitFor()
  await page.keyboard.press('Escape')
  await page.keyboard.press('4')
  await page.locator('main tr', { hasText: 'reports' }).filter({ hasText: 'leads' }).waitFor()
  await page.keyboard.press('6')
  await page.getByText('The etcd store cannot limit rates.').waitFor()
  await own.releaseAll()
  await waiting
})

test('script in a name, a holder or metadata is shown as text, and not run', async () => {
  const own = createLocks(memory(), { publish: '1s' })
  const page = await openPage(await serve(own, { title: '<b>title</b>' }, onTestFinished), onTestFinished)
  const violations: string[] = []
  page.on('dialog', (dialog) => void dialog.dismiss().then(() => violations.push('dialog')))
  await page.evaluate(
    `document.addEventListener('securitypolicyviolation', (event) => console.error('violation ' + event.violatedDirective))`,
  )
  page.on('console', (message) => violations.push(message.text()))
  const script = '<img src=x onerror=window.ran=1><script>window.ran=1</script>'
  const name = `${script}\u202e\u0007"'&`
  await own.acquire(name, { metadata: { [script]: [script, 'javascript:alert(1)'] } })
  await row(page, '<script>').waitFor()
  await page.keyboard.press('j')
  await page.keyboard.press('Enter')
  const panel = page.getByRole('complementary')
  await panel.locator('pre', { hasText: script }).waitFor()
  expect(await panel.locator('h2').textContent()).toBe(`${script}\\u202e\\u0007"'&`)
  expect(await page.locator('.store').textContent()).toBe('<b>title</b>')
  expect(await page.evaluate('[typeof ran, document.scripts.length, document.images.length]')).toEqual([
    'undefined',
    1,
    0,
  ])
  // No view needs what the policy forbids.
  await page.keyboard.press('Escape')
  for (const key of ['2', '3', '4', '5', '6', '7', '?']) await page.keyboard.press(key)
  await page.getByRole('dialog').waitFor()
  expect(violations).toEqual([])
  await own.close({ grace: 0 })
})

const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8')

/** `only`: one rule instead of all. */
async function seriousFaults(page: Page, only?: string): Promise<string[]> {
  const rules = only === undefined ? '{}' : JSON.stringify({ runOnly: [only] })
  const { violations } = await page.evaluate<{
    violations: { id: string; impact: string; nodes: { html: string }[] }[]
  }>(`axe.run(${rules})`)
  const serious = violations.filter(({ impact }) => impact === 'serious' || impact === 'critical')
  return serious.map(({ id, nodes }) => `${id}: ${nodes[0]?.html}`)
}

test('axe finds no serious fault in any view, light and dark', async () => {
  const own = createLocks(memory(), { publish: '1s' })
  await own.acquire('order:1', { metadata: { job: 'charge' } })
  await own.readWrite('order:2').acquireRead()
  const waiting = own.acquire('order:1', { wait: '30s' }).catch(() => {})
  own.limiter('api', { limit: 1, per: '1m' })
  const address = await serve(own, { allowRelease: true }, onTestFinished)
  // The policy of the page forbids foreign scripts, and axe is one.
  const page = await openPage(address, onTestFinished, { colorScheme: 'light', bypassCSP: true })
  await page.addScriptTag({ content: axe })
  await row(page, 'order:1').getByRole('button', { name: 'order:1' }).click()
  await page.locator('ol.queue li').waitFor()
  await page.locator('.state', { hasText: 'alive' }).first().waitFor()
  for (const key of ['Escape', '2', '3', '4', '5', '6', '7', '?']) {
    // The views differ in their colours only.
    for (const [colorScheme, background, rule] of [
      ['light', 'rgb(246, 247, 249)', undefined],
      ['dark', 'rgb(15, 19, 26)', 'color-contrast'],
    ] as const) {
      await page.emulateMedia({ colorScheme })
      await expect.poll(() => page.evaluate('getComputedStyle(document.body).backgroundColor')).toBe(background)
      expect([key, colorScheme, await seriousFaults(page, rule)]).toEqual([key, colorScheme, []])
    }
    await page.keyboard.press(key)
  }
  await own.close({ grace: 0 })
  await waiting
})

/** Types into the search field, and measures until each change has been laid out. More than 200 rows count as for ever. */
const FILTER_TIMES = `(async () => {
  const input = document.getElementById('search')
  const times = []
  for (const text of ['o', 'or', 'order:', 'order:49', 'order:499', 'nothing', '']) {
    const begun = performance.now()
    input.value = text
    input.dispatchEvent(new InputEvent('input', { bubbles: true }))
    await new Promise((resolve) => requestAnimationFrame(resolve))
    void document.body.offsetHeight
    times.push(document.querySelectorAll('tbody tr').length > 200 ? 1e9 : performance.now() - begun)
  }
  return times
})()`

/** Measures until all holders have been laid out in a table, as a page would that does not select what it shows. */
const TIME_OF_ALL_ROWS = `(async () => {
  const shown = document.querySelector('tbody').rows
  const begun = performance.now()
  const table = document.createElement('table')
  const body = table.createTBody()
  for (let i = 0; i < 5000; i++) body.append(shown[i % shown.length].cloneNode(true))
  document.body.append(table)
  await new Promise((resolve) => requestAnimationFrame(resolve))
  void document.body.offsetHeight
  const took = performance.now() - begun
  table.remove()
  return took
})()`

test('with 5,000 held locks a filter answers in a tenth of the time that it takes to show them all, and at most 200 rows are in the document', async () => {
  const own = createLocks(memory())
  for (let i = 0; i < 5_000; i++) await own.acquire(`${i % 2 ? 'order' : 'invoice'}:${i}`, { metadata: { attempt: i } })
  const page = await openPage(await serve(own, {}, onTestFinished), onTestFinished)
  await page.getByText('of 5,000 holders').waitFor()
  const rounds: number[][] = []
  for (let i = 0; i < 5; i++) rounds.push(await page.evaluate<number[]>(FILTER_TIMES))
  // The least of five for each text: what else the machine does can only add to it.
  const least = (rounds[0] ?? []).map((_, text) => Math.min(...rounds.map((round) => round[text] ?? 1e9)))
  const all = Math.min(await page.evaluate<number>(TIME_OF_ALL_ROWS), await page.evaluate<number>(TIME_OF_ALL_ROWS))
  expect(Math.max(...least)).toBeLessThan(all / 10)
  await page.locator('#search').fill('order:4999')
  await expect.poll(() => page.locator('tbody tr').count()).toBe(1)
  await page.locator('#search').fill('')
  await page.getByLabel('Prefix').selectOption('invoice:')
  await page.getByText('1–50 of 2,500 holders').waitFor()
  await page.getByRole('button', { name: 'Next' }).click()
  await page.getByText('51–100 of 2,500 holders').waitFor()
  expect(await page.locator('tbody tr').count()).toBeLessThanOrEqual(200)
  await own.close({ grace: 0 })
})

test('a hidden page has no connection, the store is then left alone, and a page that is seen again goes on', async () => {
  const calls: string[] = []
  const own = createLocks(memory(), { onCall: ({ call }) => calls.push(call) })
  const page = await openPage(await serve(own, {}, onTestFinished), onTestFinished)
  const hide = (hidden: boolean): Promise<unknown> =>
    page.evaluate(
      `Object.defineProperty(document, 'hidden', { value: ${hidden}, configurable: true })
       document.dispatchEvent(new Event('visibilitychange'))`,
    )
  await hide(true)
  await page.getByText('paused').waitFor()
  await expect
    .poll(() => (calls.splice(0), new Promise((resolve) => setTimeout(() => resolve(calls.length), 600))))
    .toBe(0)
  await own.acquire('meanwhile')
  await hide(false)
  await row(page, 'meanwhile').waitFor()
  await own.close({ grace: 0 })
})

test('a telephone shows everything without scrolling sideways', async () => {
  const own = createLocks(memory(), { publish: '1s' })
  await own.acquire('a-rather-long-name-of-an-order:with:many:parts:1234567890', { metadata: { job: 'x'.repeat(300) } })
  const viewport = { width: 390, height: 844 }
  const page = await openPage(await serve(own, {}, onTestFinished), onTestFinished, { viewport })
  await row(page, 'a-rather-long-name').waitFor()
  for (const key of ['1', '2', '3', '4', '5', '6', '7']) {
    await page.keyboard.press(key)
    expect([key, await page.evaluate('document.documentElement.scrollWidth')]).toEqual([key, 390])
  }
  await own.close({ grace: 0 })
})

test('an outage of the store is told, with what was seen before it', async () => {
  const flaky = await startRedis()
  const own = await openLocks(flaky.url)
  await own.acquire('before')
  const page = await openPage(await serve(own, {}, onTestFinished), onTestFinished)
  await row(page, 'before').waitFor()
  await flaky.stop()
  await page.getByRole('alert').getByText('The store does not answer').waitFor()
  expect(await row(page, 'before').count()).toBe(1)
  // A visitor who comes now is not told that nothing is held.
  const later = await openPage(await serve(own, {}, onTestFinished), onTestFinished)
  await later.getByText('Not known: the store does not answer.').waitFor()
  await own.close({ grace: 0 })
})

test('a dashboard with a token asks for it once, and refuses a wrong one', async () => {
  const own = createLocks(memory())
  await own.acquire('secret-order')
  const token = 'correct horse battery staple'
  const address = await serve(own, { token }, onTestFinished)
  expect((await fetch(`${address}events`)).status).toBe(401)
  expect((await fetch(`${address}metrics`, { headers: { authorization: `Bearer ${token}` } })).status).toBe(200)
  expect((await fetch(`${address}metrics`, { headers: { authorization: `Bearer ${token}x` } })).status).toBe(401)
  const page = await newPage(onTestFinished)
  await page.goto(address)
  await page.getByLabel('Token of this dashboard').fill('wrong')
  await page.getByRole('button', { name: 'Sign in' }).click()
  await page.getByText('This is not the token.').waitFor()
  await page.getByLabel('Token of this dashboard').fill(token)
  await page.getByRole('button', { name: 'Sign in' }).click()
  await row(page, 'secret-order').waitFor()
  const [cookie] = await page.context().cookies()
  expect(cookie).toMatchObject({ httpOnly: true, sameSite: 'Strict' })
  expect(cookie?.value).not.toContain(token)
  await own.close({ grace: 0 })
})
