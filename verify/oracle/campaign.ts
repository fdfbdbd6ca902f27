import { type ChildProcess, fork } from 'node:child_process'
import { mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { createLocks, openStore } from '../../src/index.js'
import { program, translatedSource } from '../../testbed/programs.js'
import { type Break, type OracleVerdict, judge } from './judge.js'
import { type OracleHistory, machineClock, occupant, readHistory } from './record.js'

/**
 * - `plain`: all processes want the lock exclusively, for a moment.
 * - `shared`: half of the requests are shared.
 * - `kill`: now and then the holder is killed with SIGKILL, and another process replaces it.
 * - `freeze`: now and then a process is stopped for longer than the ttl, and continues.
 * - `break`: now and then the lock is revoked from a holder that keeps it for long.
 */
export type CampaignName = 'plain' | 'shared' | 'kill' | 'freeze' | 'break'

export interface CampaignOptions {
  store: string
  campaign: CampaignName
  seconds: number
  processes?: number
  /** The translated copy of src/ that the workers run. */
  source?: string
  /** Ends with the first violation: enough for a mutant. */
  untilWrong?: boolean
  /**
   * Continues after `seconds` until the lock went from one process to another this often: before that, nothing has been
   * proven.
   */
  handoffs?: number
}

export interface CampaignResult extends OracleVerdict {
  kills: number
  freezes: number
  breaks: number
}

/** The unchanged src/. */
export const SOURCE: string = fileURLToPath(new URL('../../src', import.meta.url))
const WORKER = new URL('worker.ts', import.meta.url)
const TTL_MS = 1_000
/** ETCD_LEASE_MS: etcd keeps no lease for less than two seconds, and ends it up to a second late. */
const ETCD_LEASE_MS = 3_000
/** EXTRA_MS: how much longer a campaign may take to prove anything, on a machine that is busy with something else. */
const EXTRA_MS = 30_000

/** Runs real processes against one store for a while, disturbs them, and judges what they believed. */
export async function runCampaign(options: CampaignOptions): Promise<CampaignResult> {
  const campaign = new Campaign(options)
  try {
    return await campaign.run()
  } finally {
    await campaign.end()
  }
}

class Campaign {
  readonly #options: CampaignOptions
  readonly #folder = mkdtempSync(join(tmpdir(), 'leasehold-oracle-'))
  readonly #name = `oracle-${process.pid}-${Date.now()}-${Math.random().toString(36).slice(2)}`
  readonly #workers = new Set<ChildProcess>()
  readonly #breaks: Break[] = []
  #kills = 0
  #freezes = 0
  #over = false

  constructor(options: CampaignOptions) {
    this.#options = options
  }

  async run(): Promise<CampaignResult> {
    const { campaign, seconds, processes = 8, untilWrong = false, handoffs = 0 } = this.#options
    await Promise.all(Array.from({ length: processes }, () => this.#hire()))
    const harm = { kill: () => this.#kill(), freeze: () => this.#freeze(), break: () => this.#break() }[
      campaign as 'kill'
    ]
    const until = machineClock() + seconds * 1_000
    const harming = harm ? this.#keepHarming(harm, until) : undefined
    while (machineClock() < until) {
      await sleep(Math.min(500, Math.max(until - machineClock(), 0)))
      if (untilWrong && this.#judge().violations.length > 0) break
    }
    while (machineClock() < until + EXTRA_MS && this.#judge().handoffs < handoffs) await sleep(100)
    this.#over = true
    await harming
    await this.#dismissAll()
    return { ...this.#judge(), kills: this.#kills, freezes: this.#freezes, breaks: this.#breaks.length }
  }

  async end(): Promise<void> {
    this.#over = true
    await this.#dismissAll()
    rmSync(this.#folder, { recursive: true, force: true })
  }

  async #hire(): Promise<ChildProcess> {
    const { store, campaign, source = translatedSource() } = this.#options
    const orders = {
      source,
      store,
      folder: this.#folder,
      name: this.#name,
      ttlMs: TTL_MS,
      shared: campaign === 'shared' ? 0.5 : 0,
      stayMs: campaign === 'break' ? 3 * TTL_MS : campaign === 'freeze' ? 60 : 8,
      witness: campaign === 'plain' || campaign === 'kill',
    }
    const worker = fork(program(WORKER), [JSON.stringify(orders)], {
      execArgv: [],
      stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
    })
    this.#workers.add(worker)
    worker.once('exit', () => this.#workers.delete(worker))
    await new Promise<void>((resolve, reject) => {
      worker.once('message', () => resolve())
      worker.once('exit', (code) => reject(new Error(`a worker ended at its start with status ${code}`)))
    })
    return worker
  }

  async #keepHarming(harm: () => Promise<void>, until: number): Promise<void> {
    while (!this.#over && machineClock() < until - 1_500) {
      await sleep(300 + Math.random() * 400)
      if (!this.#over) await harm()
    }
  }

  /**
   * Kills the holder: killing any other process would prove little. Its file is removed before its lease can have
   * expired.
   */
  async #kill(): Promise<void> {
    const inside = join(this.#folder, 'inside')
    const pid = occupant(inside)?.pid
    const victim = [...this.#workers].find((worker) => worker.pid === pid) ?? this.#random()
    if (!victim) return
    const gone = new Promise((resolve) => victim.once('exit', resolve))
    victim.kill('SIGKILL')
    await gone
    this.#kills++
    if (occupant(inside)?.pid === victim.pid) rmSync(inside, { force: true })
    await this.#hire()
  }

  /** Freezes a process that believes to hold the lock: it continues when another holds it. */
  async #freeze(): Promise<void> {
    const open = this.#history().sections.filter((section) => !section.ended)
    const inside = open.toSorted((a, b) => a.until - b.until).at(-1)
    const victim = [...this.#workers].find((worker) => worker.pid === inside?.pid) ?? this.#random()
    if (!victim) return
    victim.kill('SIGSTOP')
    this.#freezes++
    const leaseMs = this.#options.store.startsWith('etcd') ? ETCD_LEASE_MS : TTL_MS
    await sleep(leaseMs * (1.1 + Math.random() * 0.4))
    victim.kill('SIGCONT')
  }

  async #break(): Promise<void> {
    const store = await openStore(this.#options.store)
    const locks = createLocks(store)
    try {
      const cut = await locks.forceRelease(this.#name)
      const at = machineClock()
      for (const { holder } of cut) this.#breaks.push({ holder, at })
    } finally {
      await locks.close()
      await store.close()
    }
    await sleep(TTL_MS)
  }

  #random(): ChildProcess | undefined {
    const workers = [...this.#workers]
    return workers[Math.floor(Math.random() * workers.length)]
  }

  #judge(): OracleVerdict {
    return judge(this.#history(), this.#breaks, TTL_MS)
  }

  #history(): OracleHistory {
    const files = readdirSync(this.#folder).filter((file) => file.startsWith('history-'))
    return readHistory(files.map((file) => join(this.#folder, file)))
  }

  async #dismissAll(): Promise<void> {
    await Promise.all(
      [...this.#workers].map(async (worker) => {
        const gone = new Promise((resolve) => worker.once('exit', resolve))
        worker.kill('SIGKILL')
        await gone
      }),
    )
  }
}
