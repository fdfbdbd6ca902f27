import { test } from 'vitest'
import { kinds } from '/work/main/test/support/places.js'
import { ALL } from '/work/main/src/store.js'
for (const k of ['memory','sqlite','redis','postgres'] as const) test(k, async () => {
  const place = await kinds[k].open()
  const a = await place.store(); const b = await place.store()
  const key='lock:x'
  const heard: any[]=[]
  const w = b.watch!(key, e => heard.push([Math.round(performance.now()-t0), e.type, (e as any).owner]))
  const t0 = performance.now()
  await w.ready
  const say = (s: string, x: any) => console.log(k, s, Math.round(performance.now()-t0), JSON.stringify(x, (_, v) => typeof v==='bigint'? 'T':v))
  const c = (owner: string, weight=1, more={}) => ({ key, owner, weight, capacity: ALL, ttlMs: 5000, ...more })
  say('writer', await a.acquire([c('w', ALL, {ttlMs: 300})]))
  for (const o of ['r1','r2','r3']) say(o, await b.acquire([c(o,1,{placeMs:3000})]))
  await new Promise(r=>setTimeout(r,400))
  say('r1 again', await b.acquire([c('r1',1,{placeMs:3000})]))
  await new Promise(r=>setTimeout(r,200))
  say('heard', heard)
  say('look', (await a.inspect!(key)).holders.map(h=>h.owner))
  await place.close()
})
