import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest'
import { type Proxy, type RedisServer, startProxy, startRedis } from '../../testbed/servers/index.js'
import { until } from '../../testbed/servers/process.js'

let redis: RedisServer
let proxy: Proxy
const clients: Client[] = []

beforeAll(async () => {
  redis = await startRedis()
})
afterAll(() => redis.stop())
beforeEach(async () => {
  await redis.command('FLUSHALL')
  proxy = await startProxy(redis.port)
})
afterEach(async () => {
  for (const client of clients.splice(0)) client.socket.destroy()
  await proxy.stop()
})

/** A bare connection through the proxy. A client library would reconnect without the test noticing. */
class Client {
  received = ''
  closed = false

  constructor(readonly socket: Socket) {
    socket.setEncoding('utf8').on('data', (chunk: string) => {
      this.received += chunk
    })
    socket
      .on('error', () => {})
      .on('close', () => {
        this.closed = true
      })
    clients.push(this)
  }

  static async open(): Promise<Client> {
    const socket = connect(proxy.port, '127.0.0.1')
    await once(socket, 'connect')
    return new Client(socket)
  }

  send(...commands: string[]): void {
    this.socket.write(commands.map((command) => `${command}\r\n`).join(''))
  }

  async gets(text: string): Promise<void> {
    await until(`${JSON.stringify(text)} arrives`, () => this.received.includes(text))
    this.received = ''
  }

  async isCut(): Promise<void> {
    await until('the connection is closed', () => this.closed)
  }
}

/** A round trip past the proxy: everything that was in flight to the server before has been handled. */
async function serverHas(key: string): Promise<unknown> {
  await redis.command('PING')
  return redis.command('GET', key)
}

test('a healthy proxy passes commands, replies and large values, and counts its connections', async () => {
  const client = await Client.open()
  client.send('PING')
  await client.gets('PONG')
  expect(proxy.connections).toBe(1)
  const large = 'x'.repeat(4_000_000)
  await redis.command('SET', 'large', large)
  client.send('GET large')
  await client.gets(large)
  client.socket.end()
  await client.isCut()
  await until('the proxy has noticed', () => proxy.connections === 0)
})

test('the same URL leads through the proxy', () => {
  expect(proxy.through(redis.url)).toBe(`redis://127.0.0.1:${proxy.port}`)
  expect(proxy.through('postgres://postgres@127.0.0.1:5432/app?x=1')).toBe(
    `postgres://postgres@127.0.0.1:${proxy.port}/app?x=1`,
  )
})

test('cut() closes open connections and serves new ones', async () => {
  const before = await Client.open()
  before.send('PING')
  await before.gets('PONG')
  proxy.cut()
  await before.isCut()
  const after = await Client.open()
  after.send('PING')
  await after.gets('PONG')
})

test('refuse() closes open connections and refuses new ones, until healed', async () => {
  const before = await Client.open()
  await proxy.refuse()
  await before.isCut()
  await expect(Client.open()).rejects.toMatchObject({ code: 'ECONNREFUSED' })
  await proxy.heal()
  const after = await Client.open()
  after.send('PING')
  await after.gets('PONG')
})

test('blackhole() swallows the bytes of old and new connections, and heal() cuts those that lost bytes', async () => {
  const old = await Client.open()
  const idle = await Client.open()
  for (const client of [old, idle]) {
    client.send('PING')
    await client.gets('PONG')
  }
  proxy.blackhole()
  const fresh = await Client.open()
  old.send('INCR swallowed')
  fresh.send('INCR swallowed')
  await new Promise((resolve) => setTimeout(resolve, 200)) // Nothing can be awaited here: the test is that no reply arrives.
  expect([old.received, old.closed, fresh.received, fresh.closed]).toEqual(['', false, '', false])
  expect(await serverHas('swallowed')).toBeNull()

  await proxy.heal()
  await old.isCut()
  await fresh.isCut()
  idle.send('PING')
  await idle.gets('PONG')
  expect(await serverHas('swallowed')).toBeNull()
})

test('blackhole() hides from the server that its client has gone', async () => {
  const client = await Client.open()
  client.send('CLIENT SETNAME gone')
  await client.gets('OK')
  proxy.blackhole()
  client.socket.destroy()
  await client.isCut()
  await new Promise((resolve) => setTimeout(resolve, 200))
  expect(await redis.command('CLIENT', 'LIST')).toContain('name=gone')
  await proxy.heal()
  await until(
    'the server has noticed',
    async () => !String(await redis.command('CLIENT', 'LIST')).includes('name=gone'),
    5_000,
  )
})

test('blackhole() of replies lets the command happen and loses the answer', async () => {
  const client = await Client.open()
  client.send('PING')
  await client.gets('PONG')
  proxy.blackhole('replies')
  client.send('INCR done')
  await until('the command is carried out', async () => (await serverHas('done')) === '1')
  expect(client.received).toBe('')
  await proxy.heal()
  await client.isCut()
})

test('stall() delivers bytes late and in order, even from a client that has given up', async () => {
  const patient = await Client.open()
  const gone = await Client.open()
  for (const client of [patient, gone]) {
    client.send('PING')
    await client.gets('PONG')
  }
  proxy.stall()
  patient.send('RPUSH list a', 'RPUSH list b')
  patient.send('LRANGE list 0 -1')
  gone.send('SET late yes')
  await new Promise((resolve) => gone.socket.end(() => resolve(undefined)))
  gone.socket.destroy()
  await gone.isCut()
  await new Promise((resolve) => setTimeout(resolve, 200))
  expect([await serverHas('late'), await redis.command('EXISTS', 'list'), patient.received]).toEqual([null, 0, ''])

  await proxy.heal()
  await patient.gets('*2\r\n$1\r\na\r\n$1\r\nb\r\n')
  await until('the late write arrives', async () => (await serverHas('late')) === 'yes')
})

test('delay() delays chunks by at least that long each way, and a shorter delay later does not overtake', async () => {
  const client = await Client.open()
  client.send('PING')
  await client.gets('PONG')
  proxy.delay(100)
  const sentAt = performance.now()
  client.send('SET order first')
  await client.gets('OK')
  expect(performance.now() - sentAt).toBeGreaterThanOrEqual(195)
  client.send('SET order second')
  await new Promise((resolve) => setTimeout(resolve, 20))
  proxy.delay(0)
  client.send('SET order third')
  await client.gets('OK\r\n+OK')
  expect(await serverHas('order')).toBe('third')
})
