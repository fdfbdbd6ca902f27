/**
 * `leasehold doctor`: what is wrong with a store for locking, and how to fix it.
 *
 * @module
 */
import { InvalidOptionError, LeaseholdError, MissingPackageError, StoreUnavailableError } from '../errors.js'
import { unknownWord } from '../util/options.js'
import { reasonOf } from '../util/reason.js'
import { redact } from '../util/redact.js'
import { storeOfUrl, type UrlStore } from '../util/store-url.js'
import {
  DEFAULTS,
  type CheckResult,
  type DoctorOptions,
  type Examination,
  type Finding,
  runChecks,
  within,
} from './check.js'

/** What doctor found out. The JSON of `leasehold doctor --json`. */
export interface DoctorReport {
  /** `redis`, `redlock`, `postgres`, `advisory`, `sqlite` or `etcd`: also the first part of every ID. */
  store: string
  /** The URL without user and password. */
  target: string
  /** What answered; null if nothing did. */
  server: string | null
  reachable: boolean
  /** No danger was found, and every check that could find some was made. */
  safe: boolean
  findings: Finding[]
  checks: CheckResult[]
}

type Examine = (url: string, options: DoctorOptions) => Promise<Examination>

/** Loaded when needed: one store's checks never load another's client. */
const EXAMINERS: Readonly<Record<Exclude<UrlStore, 'memory'>, Examine>> = {
  sqlite: async (url, options) => (await import('./sqlite.js')).examineSqlite(url, options),
  redis: async (url, options) => (await import('./redis.js')).examineRedis(url, options),
  redlock: async (url, options) => (await import('./redlock.js')).examineRedlock(url, options),
  postgres: async (url, options) => (await import('./postgres.js')).examinePostgres(url, options),
  advisory: async (url, options) => (await import('./postgres.js')).examineAdvisory(url, options),
  etcd: async (url, options) => (await import('./etcd.js')).examineEtcdUrl(url, options),
}

/** Connects and checks, within bounded time. Changes nothing but one lock of its own. */
export async function diagnose(url: string, given: Partial<DoctorOptions> = {}): Promise<DoctorReport> {
  const options = { ...DEFAULTS, ...given }
  const store = storeOfUrl(url, 'memory').store as Exclude<UrlStore, 'memory'>
  const target = redact(url)
  let examination: Examination
  try {
    examination = await EXAMINERS[store](url, options)
  } catch (error) {
    if (isBadInput(error)) throw error
    return {
      store,
      target,
      server: null,
      reachable: false,
      safe: false,
      findings: [unreachable(store, error)],
      checks: [],
    }
  }
  try {
    const known = examination.checks.map(({ id }) => id)
    for (const id of options.ignore) if (!known.includes(id)) throw unknownWord('check', id, known)
    const { findings, checks, safe } = await runChecks(examination.checks, options)
    return { store, target, server: examination.server, reachable: true, safe, findings, checks }
  } finally {
    await within(options.timeoutMs, examination.close()).catch(() => {})
  }
}

function isBadInput(error: unknown): boolean {
  if (error instanceof MissingPackageError || error instanceof InvalidOptionError) return true
  return error instanceof LeaseholdError && !(error instanceof StoreUnavailableError)
}

function unreachable(store: string, error: unknown): Finding {
  return {
    id: `${store}.reachable`,
    severity: 'danger',
    at: undefined,
    summary: 'the store cannot be reached, or answers with an error',
    evidence: redact(reasonOf(error)),
    fix: 'compare address, port, user and password with those of the server; is it running, and may this host connect?',
  }
}
