// One process of the shop in the screenshots: `shop.ts <store URL> <host name> <role>`. It really locks; only the name of its
// host is made up, so that the picture does not show one machine.
import { syncBuiltinESMExports } from 'node:module'
import os from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'

const [, , url, host, role] = process.argv as [string, string, string, string, string]
os.hostname = () => host
syncBuiltinESMExports()
const { openLocks } = await import('../../src/index.js')
const publishes = role !== 'legacy' && role !== 'deploy'
const locks = await openLocks(url, { ttl: '15s', wait: '10m', ...(publishes ? { publish: '2s' } : {}) })
const between = (least: number, most: number): number => least + Math.random() * (most - least)
const some = (most: number): number => Math.floor(Math.random() * most)

/** Works under one of many names, one after the other. */
async function work(
  name: () => string,
  job: string,
  holdMs: [number, number],
  restMs: [number, number],
): Promise<void> {
  for (;;) {
    const attempt = some(3) + 1
    await locks
      .withLock(name(), ({ signal }) => sleep(between(...holdMs), undefined, { signal }), {
        metadata: { job, attempt },
      })
      .catch(() => {})
    await sleep(between(...restMs))
  }
}

const roles: Record<string, () => void> = {
  web() {
    for (let i = 0; i < 3; i++) void work(() => `order:${4_710 + some(9)}`, 'charge', [300, 2_500], [50, 900])
    void work(() => 'stock:sku-1881', 'reserve', [800, 2_200], [100, 600])
    const api = locks.limiter('checkout', { limit: 20, per: '10s' })
    setInterval(() => void api.take(`user-${some(3)}`), 120)
  },
  worker() {
    for (let i = 0; i < 2; i++) void work(() => `invoice:2026-${100 + some(40)}`, 'render', [4_000, 20_000], [100, 500])
    void work(() => 'stock:sku-1881', 'recount', [1_500, 4_000], [200, 900])
    void locks
      .election('outbox', { value: { role: 'publisher' } })
      .run(({ signal }) => sleep(3_600_000, undefined, { signal }).catch(() => {}))
    locks.schedule('nightly-report', '*/20 * * * * *', () => sleep(2_000), { timezone: 'Europe/Berlin' })
    locks.schedule(
      'purge-carts',
      '*/15 * * * * *',
      () => (some(2) ? undefined : Promise.reject(new Error('carts: 504'))),
      {},
    )
    for (let i = 0; i < 2; i++)
      void (async () => {
        for (;;) await locks.semaphore('pdf-renderer', 4).use(() => sleep(between(3_000, 9_000)))
      })()
  },
  legacy() {
    void locks.withLock('migrate:customers', () => sleep(3_600_000), { metadata: { step: 3, of: 7 } })
    void work(() => 'stock:sku-1881', 'sync', [500, 1_500], [2_000, 4_000])
  },
  /** Waits behind the migration. */
  deploy() {
    void locks.withLock('migrate:customers', () => sleep(3_600_000), { metadata: { release: 'v318' } })
  },
}
process.on('warning', () => {})
process.on('unhandledRejection', () => {})
roles[role]?.()
process.stdout.write('{"ready":true}\n')
