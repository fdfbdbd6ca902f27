/** Many callers of many keys at several servers that time out, throw, break off and are killed; and what must hold of it. */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Child, startChild } from '../children.js'
import { type StoreKind, openStoreFixture } from '../store-fixtures.js'
import type { LogLine } from './shop.child.js'

export interface StormOptions {
  kind: Exclude<StoreKind, 'memory'>
  servers: number
  keys: number
  /** How many keys are under way at once, with `CALLERS` requests each. */
  atOnce: number
  ttlMs: number
  /** A server is killed this often. */
  killEveryMs: number
}

export interface StormReport {
  runs: number
  requests: number
  /** By status, and `broken`, `aborted`. */
  answers: Record<string, number>
  kills: number
  /** Leases that ended although their process renewed them: it was stalled for longer than the ttl. */
  lost: number
  seconds: number
  /** Each is a sentence. */
  overlaps: string[]
  runsAfterRecord: string[]
  differingAnswers: string[]
  unended: string[]
}

const CALLERS = 5
const FORMS = ['handler', 'middleware', 'fastify', 'fetch']
/** A key that has not ended after this long never will. */
const DEADLINE_MS = 120_000

const now = (): number => Number(process.hrtime.bigint()) / 1e6

interface Server {
  child: Child<{ port: number }>
  port: number
  log: string
  endedAt?: number
}

class Storm {
  readonly #options: StormOptions
  readonly #at: string
  readonly #folder: string
  readonly #all: Server[] = []
  readonly #up: Server[] = []
  readonly answers: Record<string, number> = {}
  readonly texts = new Map<string, Set<string>>()
  /** When a caller first had the whole response of a key. */
  readonly recordedAt = new Map<string, number>()
  readonly unended: string[] = []
  requests = 0
  lost = 0
  kills = 0

  constructor(options: StormOptions, at: string, folder: string) {
    this.#options = options
    this.#at = at
    this.#folder = folder
  }

  async start(): Promise<void> {
    const log = join(this.#folder, `${this.#all.length}.log`)
    const { kind, ttlMs } = this.#options
    const child = startChild<{ port: number }>(new URL('./shop.child.ts', import.meta.url), [
      kind,
      this.#at,
      `${ttlMs}ms`,
      log,
    ])
    const server: Server = { child, port: 0, log }
    this.#all.push(server)
    const { port } = await child.next()
    server.port = port
    this.#up.push(server)
    void child.ended.then(() => {
      server.endedAt ??= now()
      this.#up.splice(this.#up.indexOf(server), 1)
    })
  }

  /** Kills servers, and starts one for each that ended, until `stopped` returns true. */
  async disturb(stopped: () => boolean): Promise<void> {
    let killAt = now() + this.#options.killEveryMs
    while (!stopped()) {
      await sleep(50)
      if (now() > killAt && this.#up.length > 1) {
        this.kills++
        const victim = this.#up[Math.floor(Math.random() * this.#up.length)] as Server
        victim.child.kill('SIGKILL')
        victim.endedAt = now()
        killAt = now() + this.#options.killEveryMs
      }
      if (this.#up.length < this.#options.servers) await this.start()
    }
  }

  /** One key, asked for by several callers at the same moment, each until it has the response. */
  async exercise(key: string, form: string): Promise<void> {
    await Promise.all(Array.from({ length: CALLERS }, (_, i) => this.#call(key, form, i)))
  }

  async #call(key: string, form: string, caller: number): Promise<void> {
    const deadline = now() + DEADLINE_MS
    for (let attempt = 0; now() < deadline; attempt++) {
      // Some of the first do not wait for the answer.
      const impatient = attempt === 0 && caller < 2 && Math.random() < 0.5
      const text = await this.#ask(key, form, impatient ? Math.random() * 400 : 20_000)
      if (text !== undefined) {
        const texts = this.texts.get(key) ?? new Set()
        this.texts.set(key, texts.add(text))
        if (!this.recordedAt.has(key)) this.recordedAt.set(key, now())
        return
      }
      await sleep(20 + Math.random() * 200)
    }
    this.unended.push(`${key} at ${form}`)
  }

  async #ask(key: string, form: string, patienceMs: number): Promise<string | undefined> {
    const server = this.#up[Math.floor(Math.random() * this.#up.length)]
    if (!server) return undefined
    this.requests++
    const signal = AbortSignal.timeout(Math.ceil(patienceMs))
    try {
      const response = await fetch(`http://127.0.0.1:${server.port}/${form}`, {
        method: 'POST',
        headers: { 'idempotency-key': key, 'content-type': 'application/json' },
        body: JSON.stringify({ key }),
        signal,
      })
      const text = await response.text()
      this.#count(String(response.status))
      return response.status === 201 ? text : undefined
    } catch {
      this.#count(signal.aborted ? 'aborted' : 'broken')
      return undefined
    }
  }

  #count(what: string): void {
    this.answers[what] = (this.answers[what] ?? 0) + 1
  }

  async stop(): Promise<void> {
    for (const { child } of this.#all) child.kill('SIGKILL')
    await Promise.all(this.#all.map(({ child }) => child.ended))
  }

  /** Every run of every key; one that did not end did so with its process. */
  runs(): Map<string, { run: string; from: number; to: number }[]> {
    const byKey = new Map<string, { run: string; from: number; to: number }[]>()
    for (const { log, endedAt = now() } of this.#all) {
      const open = new Map<string, { run: string; from: number; to: number }>()
      for (const line of linesOf(log)) {
        const [key, run, what, at] = line
        if (what === 'lost') this.lost++
        else if (what === 'begin') {
          const one = { run, from: at, to: endedAt }
          open.set(run, one)
          byKey.set(key, [...(byKey.get(key) ?? []), one])
        } else (open.get(run) as { to: number }).to = at
      }
    }
    for (const list of byKey.values()) list.sort((a, b) => a.from - b.from)
    return byKey
  }
}

function linesOf(log: string): LogLine[] {
  const lines: LogLine[] = []
  for (const line of readFileSync(log, 'utf8').split('\n')) if (line !== '') lines.push(JSON.parse(line) as LogLine)
  return lines
}

export async function storm(options: StormOptions): Promise<StormReport> {
  const place = await openStoreFixture(options.kind)
  const folder = mkdtempSync(join(tmpdir(), 'leasehold-storm-'))
  const one = new Storm(options, place.at, folder)
  const beganAt = now()
  try {
    await Promise.all(Array.from({ length: options.servers }, () => one.start()))
    let over = false
    const disturbing = one.disturb(() => over)
    let next = 0
    const worker = async (): Promise<void> => {
      while (next < options.keys) {
        const i = next++
        await one.exercise(`key-${i}`, FORMS[i % FORMS.length] as string)
      }
    }
    await Promise.all(Array.from({ length: options.atOnce }, worker))
    over = true
    await disturbing
    await one.stop()
    return { ...judge(one), seconds: (now() - beganAt) / 1_000 }
  } finally {
    await one.stop()
    rmSync(folder, { recursive: true, force: true })
    await place.close()
  }
}

function judge(one: Storm): Omit<StormReport, 'seconds'> {
  const overlaps: string[] = []
  const runsAfterRecord: string[] = []
  let runs = 0
  for (const [key, list] of one.runs()) {
    runs += list.length
    const recordedAt = one.recordedAt.get(key) ?? Number.POSITIVE_INFINITY
    for (const [i, run] of list.entries()) {
      const before = list[i - 1]
      if (before && run.from < before.to) overlaps.push(`${key}: ${run.run} began ${before.to - run.from} ms too early`)
      if (run.from > recordedAt) runsAfterRecord.push(`${key}: ${run.run} began ${run.from - recordedAt} ms after it`)
    }
  }
  const differing = [...one.texts].filter(([, texts]) => texts.size > 1)
  const { requests, answers, kills, lost, unended } = one
  const differingAnswers = differing.map(([key, texts]) => `${key}: ${[...texts].join(' | ')}`)
  return { runs, requests, answers, kills, lost, overlaps, runsAfterRecord, differingAnswers, unended }
}
