/** Places where stores of several clients meet, one of each kind, for suites that run against every store. */
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, test } from 'vitest'
import { startPostgres, startRedis } from '../../scripts/servers/index.js'
import { memory } from '../../src/stores/memory/index.js'
import { migrate } from '../../src/stores/postgres/index.js'
import { openClient } from '../../src/stores/postgres/open.js'
import { type Case, type Need, type Setup, conformance } from '../../src/testing/index.js'
import { openStore } from '../../src/open-store.js'

export interface Place extends Setup {
  /** For other processes. Absent: there is no place for them here. */
  readonly url: string | undefined
}

export interface Kind {
  readonly name: string
  readonly lacks: readonly Need[]
  open(): Promise<Place>
}

/** A place that is known by its URL. */
function at(url: string, close: () => Promise<unknown>): Place {
  return { url, store: () => openStore(url), close: async () => void (await close()) }
}

export const kinds: Record<'memory' | 'sqlite' | 'redis' | 'postgres' | 'advisory' | 'redlock', Kind> = {
  memory: {
    name: 'memory',
    lacks: [],
    async open() {
      const store = memory()
      return { url: undefined, store: async () => store, close: async () => {} }
    },
  },
  sqlite: {
    name: 'sqlite',
    lacks: [],
    async open() {
      const folder = await mkdtemp(join(tmpdir(), 'leasehold-place-'))
      return at(`sqlite:${join(folder, 'locks.db')}`, () => rm(folder, { recursive: true, force: true }))
    },
  },
  redis: {
    name: 'redis',
    lacks: [],
    async open() {
      const server = await startRedis()
      return at(server.url, () => server.stop())
    },
  },
  postgres: {
    name: 'postgres lease table',
    lacks: [],
    async open() {
      const server = await startPostgres()
      const { client, close } = await openClient(server.url)
      await migrate(client)
      await close()
      return at(server.url, () => server.stop())
    },
  },
  advisory: {
    name: 'postgres advisory locks',
    lacks: ['line', 'handoff', 'counting', 'values', 'watch', 'take', 'owners'],
    async open() {
      const server = await startPostgres()
      return at(server.url.replace('postgres:', 'postgres+advisory:'), () => server.stop())
    },
  },
  redlock: {
    name: 'redlock on five servers',
    lacks: ['line', 'handoff', 'counting', 'atomic', 'take', 'owners'],
    async open() {
      const servers = await Promise.all(Array.from({ length: 5 }, () => startRedis()))
      const hosts = servers.map(({ port }) => `127.0.0.1:${port}`)
      return at(`redlock://${hosts}`, () => Promise.all(servers.map((server) => server.stop())))
    },
  },
}

/** The cases on one kind of place. What it cannot carry, it has to refuse as the cases say. */
export function suite(kind: Kind, cases: readonly Case[]): void {
  conformance({
    name: kind.name,
    lacks: kind.lacks,
    open: () => kind.open(),
    cases,
    describe,
    test: test.concurrent,
    beforeAll,
    afterAll,
  })
}

/** The cases on every kind of place. */
export function everywhere(cases: readonly Case[]): void {
  for (const kind of Object.values(kinds)) suite(kind, cases)
}
