import { execFile } from 'node:child_process'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { inspect, promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { createLocks, InvalidOptionError, openStore, StoreUnavailableError } from '../../../src/index.js'
import { etcd } from '../../../src/stores/etcd/index.js'
import { type EtcdCluster, startEtcd } from '../../../testbed/servers/index.js'
import { until } from '../../../testbed/servers/process.js'

const run = promisify(execFile)
const TOKEN_S = 2

describe('a cluster with users and passwords, whose tokens expire after two seconds', () => {
  let cluster: EtcdCluster
  let host: string

  beforeAll(async () => {
    const dir = (await run('mktemp', ['-d'])).stdout.trim()
    const [key, pub] = [join(dir, 'jwt.key'), join(dir, 'jwt.pub')]
    await run('openssl', ['genrsa', '-out', key, '2048'])
    await run('openssl', ['rsa', '-in', key, '-pubout', '-out', pub])
    const token = `jwt,pub-key=${pub},priv-key=${key},sign-method=RS256,ttl=${TOKEN_S}s`
    cluster = await startEtcd({ flags: { 'auth-token': token } })
    host = cluster.nodes[0]?.host as string
    await cluster.ctl('user', 'add', 'root:secret')
    await cluster.ctl('user', 'grant-role', 'root', 'root')
    await cluster.ctl('user', 'add', 'app:pass word@/')
    await cluster.ctl('role', 'add', 'locks')
    await cluster.ctl('role', 'grant-permission', 'locks', 'readwrite', 'team/', '--prefix=true')
    await cluster.ctl('user', 'grant-role', 'app', 'locks')
    await cluster.ctl('auth', 'enable')
  })
  afterAll(() => cluster.stop())

  test('a lock is acquired, renewed past the expiry of the token, waited for and released', async () => {
    const credentials = { username: 'app', password: 'pass word@/' }
    const [one, other] = [1, 2].map(() => createLocks(etcd([host], { credentials, prefix: 'team/' }), { ttl: '9s' }))
    let renewals = 0
    one?.on('renewed', () => renewals++)
    const held = await one?.acquire('order:7')
    const waiting = other?.acquire('order:7', { wait: '50s' })
    // The heartbeat comes every three seconds: when the second is sent, each token of before has expired.
    await until('it is renewed twice', () => renewals >= 2)
    expect(held?.isHeld).toBe(true)
    expect(await held?.release()).toBe(true)
    const next = await waiting
    expect((next?.fencingToken ?? 0n) > (held?.fencingToken ?? 0n)).toBe(true)
    await next?.release()
    await Promise.all([one?.close(), other?.close()])
  })

  test('a URL carries user, password and prefix', async () => {
    const store = await openStore(`etcd://app:${encodeURIComponent('pass word@/')}@${host}/team%2F`)
    const locks = createLocks(store)
    await (await locks.acquire('by-url')).release()
    await locks.close()
    await store.close()
  })

  test.each([
    ['no credentials', undefined, 'team/', /requires credentials/],
    ['a wrong password', { username: 'app', password: 'wrong-s3cret' }, 'team/', /user or the password is wrong/],
    ['a prefix without permission', { username: 'app', password: 'pass word@/' }, 'other/', /readwrite permission/],
  ])('%s: every call says so, and shows no secret', async (_, credentials, prefix, message) => {
    const store = etcd([host], { prefix, ...(credentials ? { credentials } : {}) })
    const locks = createLocks(store)
    const error = (await locks.tryAcquire('x').catch((reason: unknown) => reason)) as Error
    expect(error).toBeInstanceOf(StoreUnavailableError)
    expect(error.message).toMatch(message)
    expect(`${error.message}${error.stack}${String(error.cause)}`).not.toMatch(/wrong-s3cret|pass word/)
    await locks.close()
    await store.close()
  })
})

test('a process goes on when the cluster begins to ask for credentials, and when it stops', async () => {
  await using cluster = await startEtcd()
  const host = cluster.nodes[0]?.host as string
  const credentials = { username: 'root', password: 'pw' }
  const locks = createLocks(etcd([host], { credentials }), { ttl: '6s', wait: '30s' })
  let renewals = 0
  locks.on('renewed', () => renewals++)
  const held = await locks.acquire('through')
  await cluster.ctl('user', 'add', 'root:pw')
  await cluster.ctl('user', 'grant-role', 'root', 'root')
  await cluster.ctl('auth', 'enable')
  expect(await (await locks.acquire('after it')).release()).toBe(true)
  const other = createLocks(etcd([host], { credentials }), { wait: '30s' })
  const waiting = other.acquire('through')
  renewals = 0
  await until('it is renewed twice', () => renewals >= 2)
  expect(held.isHeld).toBe(true)
  await cluster.ctl('--user', 'root:pw', 'auth', 'disable')
  expect(await (await locks.acquire('after that')).release()).toBe(true)
  expect(await held.release()).toBe(true)
  await (await waiting).release()
  await Promise.all([locks.close(), other.close()])
})

describe('a cluster with TLS and client certificates', () => {
  let cluster: EtcdCluster
  let host: string

  beforeAll(async () => {
    cluster = await startEtcd({ tls: 'client-certificates' })
    host = cluster.nodes[0]?.host as string
  })
  afterAll(() => cluster.stop())

  test('a lock is acquired and released with a client certificate', async () => {
    const { ca, cert, key } = cluster
    const store = etcd([host], { tls: { ca, cert, key } })
    const locks = createLocks(store)
    expect(await (await locks.acquire('tls')).release()).toBe(true)
    await locks.close()
    await store.close()
  })

  test('etcds:// reads certificates from files', async () => {
    const files = Object.entries({ ca: cluster.ca, cert: cluster.cert, key: cluster.key }).map(([name, text]) => {
      const path = join(cluster.dir, `client-${name}.pem`)
      return { name, path, text: text as string }
    })
    for (const { path, text } of files) await writeFile(path, text)
    const query = files.map(({ name, path }) => `${name}=${encodeURIComponent(path)}`).join('&')
    const store = await openStore(`etcds://${host}?${query}`)
    const locks = createLocks(store)
    await (await locks.acquire('tls-by-url')).release()
    await locks.close()
    await store.close()
  })

  test.each([
    ['without a client certificate', () => ({ ca: cluster.ca })],
    ['with an authority that did not sign it', () => ({})],
  ])('%s every call is refused, and the reason is named', async (_, tls) => {
    const store = etcd([host], { tls: tls() })
    const locks = createLocks(store)
    const error = (await locks.tryAcquire('x').catch((reason: unknown) => reason)) as Error
    expect(error).toBeInstanceOf(StoreUnavailableError)
    expect(error.message).toMatch(/certificate/)
    expect(error.message).toContain(host)
    await locks.close()
    await store.close()
  })
})

describe('options', () => {
  test.each([
    ['hosts', () => etcd([])],
    ['hosts', () => etcd(['10.0.0.1:99999'])],
    ['hosts', () => etcd(['user:secret@10.0.0.1'])],
    ['hosts', () => etcd(['a:1', 'a:1'])],
    ['hosts', () => etcd(['http://a'], { tls: true })],
    ['prefix', () => etcd(['a'], { prefix: 7 as never })],
    ['tls', () => etcd(['a'], { tls: 'yes' as never })],
    ['tls', () => etcd(['a'], { tls: { cert: 'x' } })],
    ['credentials', () => etcd(['a'], { credentials: { username: 'u' } as never })],
  ])('a wrong %s is refused before anything is touched', (option, make) => {
    let error: unknown
    try {
      make()
    } catch (thrown) {
      error = thrown
    }
    expect(error).toBeInstanceOf(InvalidOptionError)
    expect((error as InvalidOptionError).option).toBe(option)
    expect((error as Error).message).not.toContain('secret')
  })

  test('an unknown option is refused with a suggestion', () => {
    expect(() => etcd(['a'], { prefx: 'x' } as never)).toThrow('did you mean "prefix"?')
  })

  test.each(['root:hunter2/x@h:2379', 'root:a/hunter2@h:2379', 'root:hunter2?x@h:2379', 'root:x@h:2379/hunter2@h'])(
    'a password that is not encoded in etcd://%s is shown nowhere',
    async (rest) => {
      const error = await openStore(`etcd://${rest}`).catch((thrown: unknown) => thrown)
      expect(error).toMatchObject({ name: 'InvalidOptionError', option: 'store' })
      expect(inspect(error, { depth: 9, showHidden: true }) + JSON.stringify(error)).not.toContain('hunter2')
    },
  )

  test('a tls that is text is not shown: it may be a key', () => {
    expect(() => etcd(['a'], { tls: 'hunter2' as never })).toThrow(/it was a string$/)
  })

  test.each(['etcd://', 'etcd://user@h', 'etcd://h?ca=x', 'etcds://h?caa=x', 'etcd://%zz:x@h'])(
    '%s is refused',
    async (url) => {
      await expect(openStore(url)).rejects.toBeInstanceOf(InvalidOptionError)
    },
  )
})
