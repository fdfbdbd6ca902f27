import { setTimeout as sleep } from 'node:timers/promises'
import { expect, test } from 'vitest'
import type { RedisServer } from '../../../testbed/servers/index.js'
import { createLocks } from '../../../src/index.js'
import { realWorld } from '../../../src/util/world.js'
import { connectionOf, ScriptRunner } from '../../../src/stores/redlock/connection.js'
import { runChannel } from '../../../src/stores/redlock/keys.js'
import { LuaNode } from '../../../src/stores/redlock/lua-node.js'
import type { NodeCallback, NodeRecord, VoteReply } from '../../../src/stores/redlock/node.js'
import { Servers } from './servers.js'

// A vote proves the run of its server: by a connection that is subscribed to the channel of the run, else by INFO.

const runOf = async (server: RedisServer): Promise<string> =>
  /run_id:(\w+)/.exec(String(await server.command('INFO', 'server')))?.[1] as string

const runChannels = (server: RedisServer): Promise<unknown> =>
  server.command('PUBSUB', 'CHANNELS', 'leasehold:redlock:run:*')

/** By how many calls the server was asked for its INFO since the last RESETSTAT, other than by this one. */
const infos = async (server: RedisServer): Promise<number> =>
  Number(/cmdstat_info:calls=(\d+)/.exec(String(await server.command('INFO', 'commandstats')))?.[1] ?? 0)

async function until(what: string, condition: () => Promise<boolean>): Promise<void> {
  const deadline = performance.now() + 30_000
  while (!(await condition())) {
    if (performance.now() > deadline) throw new Error(`waited in vain until ${what}`)
    await sleep(20)
  }
}

const ask = <T>(call: (done: NodeCallback<T>) => void): Promise<T> =>
  new Promise((resolve, reject) => {
    call((answer) => (answer instanceof Error ? reject(answer) : resolve(answer)))
  })

test('servers whose run is proven by a subscriber are not asked for it by votes, releases and renewals', async () => {
  const servers = await Servers.start(3)
  const locks = createLocks(servers.store({}, servers.mixed()), { ttl: '10s' })
  const held = await locks.acquire('held')
  for (const server of servers.all) {
    const expected = [runChannel(await runOf(server))]
    await until('the run is proven', async () => JSON.stringify(await runChannels(server)) === JSON.stringify(expected))
    await server.command('CONFIG', 'RESETSTAT')
  }
  for (let i = 0; i < 20; i++) await (await locks.acquire(`name:${i}`)).release()
  await held.extend('10s')
  for (const server of servers.all) expect(await infos(server)).toBe(0)
  await held.release()
  await locks.close()
  await servers.stop()
})

test('a server that was restarted with its data has no subscriber that proves its earlier run, and does not vote for it', async () => {
  const servers = await Servers.start(3)
  const locks = createLocks(servers.store({}, servers.mixed()), { ttl: '30s' })
  await locks.acquire('held')
  for (const [i, server] of servers.all.slice(0, 2).entries()) {
    const before = await runOf(server)
    await until('the run is proven', async () => String(await runChannels(server)) === runChannel(before))
    await server.restart({ keepData: true })
    const after = await runOf(server)
    expect(after).not.toBe(before)
    const node = new LuaNode(new ScriptRunner(connectionOf(servers.ioredis()[i], i), realWorld, 5_000), {
      nodes: 3,
      maxTtlMs: 60_000,
    })
    const vote = { key: 'lock:other', owner: 'x#aaaaaaaa', ttlMs: 1_000, shared: false, steal: false, announce: false }
    const voted = (run: string): Promise<VoteReply> =>
      ask((done) => node.vote({ run, items: [{ ...vote, value: undefined }], token: 0, notifyWaiters: false }, done))
    expect(await voted(before)).toMatchObject({ standing: 'stranger' })
    await until('subscribers are back', async () => String(await runChannels(server)) === runChannel(after))
    expect(await voted(before)).toMatchObject({ standing: 'stranger' })
    // The record of before is there, and names another run.
    expect(await voted(after)).toMatchObject({ standing: 'sits' })
    const { state } = await ask<NodeRecord>((done) => node.identify({ id: 'x', known: true }, done))
    expect(state).toBe('lost')
  }
  await locks.close()
  await servers.stop()
})
