/**
 * One fixture per store kind, for suites that run against every store. A fixture is a running server (or file, or
 * memory) that several clients share.
 */
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, test } from 'vitest'
import { startEtcd, startPostgres, startRedis } from './servers/index.js'
import { memory } from '../src/stores/memory/index.js'
import { migrate } from '../src/stores/postgres/index.js'
import { openClient } from '../src/clients/postgres/open.js'
import { type Case, type Need, type Setup, conformance } from '../src/testing/index.js'
import { openStore } from '../src/open-store.js'
import { SUITES_ON } from './suites.js'

export interface Fixture extends Setup {
  /** The URL for other processes. Absent: the store lives in this process only. */
  readonly url: string | undefined
}

export interface FixtureKind {
  readonly name: string
  readonly lacks: readonly Need[]
  open(): Promise<Fixture>
}

/**
 * PATIENT: the timeout of the stores. Cases that run at once, each with clients of its own, keep a busy machine from
 * answering within the default of some seconds, which would be an outage.
 */
const PATIENT = 'timeout=20s'

/** A fixture whose store is opened by URL. */
function at(url: string, close: () => Promise<unknown>): Fixture {
  return { url, store: () => openStore(url), close: async () => void (await close()) }
}

type KindName = 'memory' | 'sqlite' | 'redis' | 'postgres' | 'advisory' | 'redlock' | 'etcd'

export const kinds: Record<KindName, FixtureKind> = {
  memory: {
    name: 'memory',
    lacks: ['watchGrants'],
    async open() {
      const store = memory()
      return { url: undefined, store: async () => store, close: async () => {} }
    },
  },
  sqlite: {
    name: 'sqlite',
    lacks: ['watchGrants'],
    async open() {
      const folder = await mkdtemp(join(tmpdir(), 'leasehold-fixture-'))
      return at(`sqlite:${join(folder, 'locks.db')}`, () => rm(folder, { recursive: true, force: true }))
    },
  },
  redis: {
    name: 'redis',
    lacks: [],
    async open() {
      const server = await startRedis()
      return at(`${server.url}?${PATIENT}`, () => server.stop())
    },
  },
  postgres: {
    name: 'postgres lease table',
    lacks: ['watchGrants'],
    async open() {
      const server = await startPostgres()
      const { client, close } = await openClient(server.url)
      await migrate(client)
      await close()
      return at(`${server.url}?${PATIENT}`, () => server.stop())
    },
  },
  advisory: {
    name: 'postgres advisory locks',
    lacks: ['queue', 'handoff', 'counting', 'values', 'watch', 'watchGrants', 'take', 'owners'],
    async open() {
      const server = await startPostgres()
      return at(`${server.url.replace('postgres:', 'postgres+advisory:')}?${PATIENT}`, () => server.stop())
    },
  },
  redlock: {
    name: 'redlock on five servers',
    lacks: ['queue', 'handoff', 'counting', 'atomic', 'watchGrants', 'take', 'owners'],
    async open() {
      const servers = await Promise.all(Array.from({ length: 5 }, () => startRedis()))
      const hosts = servers.map(({ port }) => `127.0.0.1:${port}`)
      return at(`redlock://${hosts}?nodeTimeout=5s`, () => Promise.all(servers.map((server) => server.stop())))
    },
  },
  etcd: {
    name: 'etcd on three nodes',
    lacks: ['handoff', 'take', 'now'],
    async open() {
      const cluster = await startEtcd({ nodes: 3 })
      return at(cluster.url, () => cluster.stop())
    },
  },
}

/** Runs the cases on one kind of store. What the store lacks, it has to decline as the cases say. */
export function suite(kind: FixtureKind, cases: readonly Case[]): void {
  conformance({
    name: kind.name,
    lacks: kind.lacks,
    open: () => kind.open(),
    cases,
    describe: describe.concurrent,
    test: test.concurrent,
    beforeAll,
    afterAll,
  })
}

/**
 * The kinds that the suites of the primitives run on. etcd, whose every write waits for a majority of disks, is left to
 * `npm run prove -- etcd --only primitives`: in the tests its conformance has to do.
 */
export function suiteKinds(): FixtureKind[] {
  const only = process.env[SUITES_ON]
  if (only === undefined) return Object.values(kinds).filter((kind) => kind !== kinds.etcd)
  if (!Object.hasOwn(kinds, only)) throw new Error(`${SUITES_ON}: no kind "${only}" (known: ${Object.keys(kinds)})`)
  return [kinds[only as KindName]]
}

/** Runs the cases on all of these kinds. */
export function everywhere(cases: readonly Case[]): void {
  for (const kind of suiteKinds()) suite(kind, cases)
}
