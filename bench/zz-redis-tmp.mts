import { Redis } from 'ioredis'
import { spawn } from 'node:child_process'
import { createLocks } from '../src/index.ts'
import { adapterOf, redis } from '../src/stores/redis/index.ts'
import { composeScripts, embedded } from '../src/stores/redis/scripts.ts'
const srv = spawn('redis-server', ['--port', '17392', '--save', '', '--dir', '/tmp/rq'], { stdio: 'ignore' })
await new Promise((r) => setTimeout(r, 500))
process.on('exit', () => srv.kill())
const c = new Redis('redis://127.0.0.1:17392')
const store = redis(c)
const ad = adapterOf(c)
const locks = createLocks(store)
const CD = (await c.script(
  'LOAD',
  `if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end`,
)) as string
const NX = (await c.script('LOAD', `return redis.call('set',KEYS[1],ARGV[1],'NX','PX',ARGV[2])`)) as string
const owner = 'host:1234:0190a0b0-1111-7222-8333-444455556666/12'
const S = composeScripts(embedded, false)
const claim = { key: 'lock:order:1', owner, weight: 2147483647, capacity: 2147483647, ttlMs: 30000 }
await store.acquire([claim])
await store.release([claim])
const v: Record<string, () => Promise<void>> = {
  bare: async () => {
    await c.set('b:x', owner, 'PX', 30000, 'NX')
    await c.evalsha(CD, 1, 'b:x', owner)
  },
  nx: async () => {
    await c.evalsha(NX, 1, 'b:x', owner, '30000')
    await c.evalsha(CD, 1, 'b:x', owner)
  },
  rawA: async () => {
    await c.evalsha(S.acquire.sha, 2, 'leasehold:held:lock', 'lock:order:1', '9999999999999999', owner, '30000', '')
    await c.evalsha(CD, 1, 'lock:order:1', owner)
  },
  raw: async () => {
    await c.evalsha(S.acquire.sha, 2, 'leasehold:held:lock', 'lock:order:1', '9999999999999999', owner, '30000', '')
    await c.evalsha(S.release.sha, 2, 'leasehold:held:lock', 'lock:order:1', owner)
  },
  raw2: async () => {
    await ad.evalsha(S.acquire.sha, ['leasehold:held:lock', 'lock:order:1'], ['9999999999999999', owner, '30000', ''])
    await ad.evalsha(S.release.sha, ['leasehold:held:lock', 'lock:order:1'], [owner])
  },
  raw3: async () => {
    const r = await ad.evalsha(
      S.acquire.sha,
      ['leasehold:held:lock', 'lock:order:1'],
      [String(1994782000000000 + Math.floor(performance.now() * 1000)), owner, '30000', ''],
    )
    BigInt(r as string)
    await ad.evalsha(S.release.sha, ['leasehold:held:lock', 'lock:order:1'], [owner])
  },
  raw4: async () => {
    await ad
      .evalsha(S.acquire.sha, ['leasehold:held:lock', 'lock:order:1'], ['9999999999999999', owner, '30000', ''])
      .then((x: any) => [x])
      .then((x: any) => x)
    await ad
      .evalsha(S.release.sha, ['leasehold:held:lock', 'lock:order:1'], [owner])
      .then((x: any) => [x])
      .then((x: any) => x)
  },
  store: async () => {
    await store.acquire([claim])
    await store.release([claim])
  },
  core: async () => {
    const l = await locks.acquire('order:2')
    await l.release()
  },
}
if (process.argv[2]) {
  const f = v[process.argv[2]]!
  for (let i = 0; i < 40000; i++) await f()
  await locks.close()
  await store.close()
  c.disconnect()
  srv.kill()
  process.exit(0)
}
const wall: Record<string, number[]> = {}
for (let round = 0; round < 40; round++)
  for (const k in v) {
    const n = 500
    const t = performance.now()
    for (let i = 0; i < n; i++) await v[k]!()
    ;(wall[k] ??= []).push(((performance.now() - t) / n) * 1000)
  }
const q = (a: number[], p: number) => [...a].sort((x, y) => x - y)[Math.floor(a.length * p)]!
for (const k in v)
  console.log(
    k.padEnd(6),
    'min',
    q(wall[k]!, 0).toFixed(1),
    'p25',
    q(wall[k]!, 0.25).toFixed(1),
    'ratio',
    (q(wall[k]!, 0.25) / q(wall.bare!, 0.25)).toFixed(3),
    'min',
    (q(wall[k]!, 0) / q(wall.bare!, 0)).toFixed(3),
  )
await locks.close()
await store.close()
c.disconnect()
srv.kill()
