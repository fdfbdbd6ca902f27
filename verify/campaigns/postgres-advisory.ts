// Checks what advisory locks guarantee, for longer and with more processes than the tests have time for.
import { runHistory } from '../../testbed/postgres-advisory/history.js'
import { ask, claim, AdvisoryFixture, sleep } from '../../testbed/postgres-advisory/fixture.js'
import { createLocks } from '../../src/index.js'
import { startPgBouncer, startPostgres, startStandby } from '../../testbed/servers/index.js'
import type { Proving } from './proving.js'

export default async function prove(p: Proving): Promise<void> {
  await historyOfManyProcesses(p)
  await tokensOverKills(p)
  await tokensOverFailovers(p)
  await nothingLeftBehind(p)
  await poolersRefused(p)
}

async function historyOfManyProcesses(p: Proving): Promise<void> {
  await using server = await startPostgres()
  const options = { url: server.url, processes: 8, acquisitions: 500, names: 20, kills: 12, seed: p.seed }
  const { faults, grants, killedHolding, lost } = await runHistory(options)
  for (const fault of faults.slice(0, 10)) p.say(fault)
  const figures = `${grants} grants, ${killedHolding} killed while holding, ${lost} lost, ${faults.length} faults`
  p.check('8 processes x 500 acquisitions of 20 names with kills: one holder at a time', faults.length === 0, figures)
}

async function tokensOverKills(p: Proving): Promise<void> {
  await using server = await startPostgres()
  const fixture = new AdvisoryFixture(server.url)
  const locks = createLocks(fixture.store(), { wait: '30s' })
  const over = performance.now() + p.seconds * 300
  let [last, grants, kills, backwards] = [0n, 0, 0, 0]
  while (kills < 3 || performance.now() < over) {
    for (let i = 0; i < 100; i++) {
      const lock = await locks.acquire('killed')
      if (lock.fencingToken <= last) backwards++
      last = lock.fencingToken
      grants++
      await lock.release()
    }
    await server.kill()
    await server.restart()
    kills++
  }
  await locks.close()
  await fixture.close()
  p.check('tokens grow over kill -9 of the server', backwards === 0, `${grants} grants over ${kills} kills`)
}

async function tokensOverFailovers(p: Proving): Promise<void> {
  for (const synchronous of [true, false]) {
    await using primary = await startPostgres()
    await using standby = await startStandby(primary, { synchronous })
    const [before, after] = [new AdvisoryFixture(primary.url), new AdvisoryFixture(standby.url)]
    const locks = createLocks(before.store())
    let last = 0n
    for (let i = 0; i < 200; i++) {
      const lock = await locks.acquire('failed over')
      last = lock.fencingToken
      await lock.release()
    }
    await primary.kill()
    await standby.promote()
    const next = await createLocks(after.store()).acquire('failed over')
    const how = synchronous ? 'synchronous' : 'asynchronous'
    p.check(`tokens grow over a failover, ${how} replication`, next.fencingToken > last)
    await after.close()
    await before.close()
  }
}

/** Lets grants, timeouts and cancellations of waits meet: each has to leave the session without a lock. */
async function nothingLeftBehind(p: Proving): Promise<void> {
  await using server = await startPostgres()
  const fixture = new AdvisoryFixture(server.url)
  const [a, b] = [fixture.store(), fixture.store({ queueFor: 15 })]
  const over = performance.now() + p.seconds * 300
  let [rounds, granted] = [0, 0]
  for (; rounds < 100 || performance.now() < over; rounds++) {
    const held = claim('moment')
    while ((await ask(a, held)).granted !== true) await sleep(1)
    const wanted = claim('moment', { blockMs: 200, queueMs: 3_000 })
    const waiting = ask(b, wanted)
    await sleep(12 + Math.random() * 8)
    await Promise.all([
      a.release([held]),
      rounds % 2 ? sleep(Math.random() * 2).then(() => b.release([wanted])) : undefined,
    ])
    if ((await waiting).granted === true) granted++
    await b.release([wanted])
  }
  await sleep(1_000)
  const left = await fixture.held()
  await fixture.close()
  p.check(
    'waits that end at the moment of the grant leave nothing behind',
    left === 0,
    `${rounds} rounds, ${granted} granted`,
  )
}

async function poolersRefused(p: Proving): Promise<void> {
  await using server = await startPostgres()
  await using bouncer = await startPgBouncer({ postgres: server, mode: 'transaction' })
  const fixture = new AdvisoryFixture(bouncer.url)
  // Other clients use the same pooler, so that server connections change hands all the time.
  const pool = fixture.pool({ max: 8 })
  let busy = true
  const traffic = Array.from({ length: 8 }, async () => {
    while (busy) await pool.query('SELECT pg_sleep(random() / 200)')
  })
  let refused = 0
  for (let i = 0; i < 50; i++) {
    const answer = await ask(fixture.store(), claim(`pooled:${i}`))
    if (answer.granted === 'unknown') refused++
  }
  busy = false
  await Promise.all(traffic)
  await fixture.close()
  p.check('PgBouncer in transaction mode is refused, also under traffic', refused === 50, `${refused} of 50`)
}
