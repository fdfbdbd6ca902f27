/**
 * Hand-offs of `leasehold run` or `elect` between commands that are hard to end: their workers are in process groups of their own
 * (`timeout`, `set -m`), in the background, orphaned, or ignore SIGTERM. A third of the holders is killed or frozen.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { ROOT, program } from '../../../testbed/programs.js'

const HOLDER = fileURLToPath(new URL('holder.sh', import.meta.url))
const SHAPES = ['timeout', 'set-m', 'background', 'orphan'] as const
/** How a holder ends: a third of them by SIGKILL or SIGSTOP. */
const FATES = ['ends', 'ends', 'SIGTERM', 'SIGTERM', 'SIGKILL', 'SIGSTOP'] as const

export type Fate = (typeof FATES)[number]

export type HandoffCommand = 'run' | 'elect'

export interface HandoffOptions {
  /** `run` unless given. */
  command?: HandoffCommand
  store: string
  /** For the journals. */
  folder: string
  /** Hand-offs in a row in each lane. */
  handoffs: number
  lanes: number
  /** Long enough for a busy machine to renew in time, short enough not to wait for ever for the dead. */
  ttlMs: number
  random: () => number
}

export interface HandoffReport {
  handoffs: number
  fates: Record<Fate, number>
  /** Processes of an earlier holder that were alive when the next one began. */
  alive: string[]
  /** Lines that an earlier holder wrote after the next one had begun. */
  late: number
  /** Exit statuses that do not fit the fate. */
  wrongStatus: string[]
  /** Holders whose machine was too busy to renew in time, and whose watchdog stopped them (status 70). */
  stopped: number
  /** Lines in all journals. */
  lines: number
}

export async function handOff(options: HandoffOptions): Promise<HandoffReport> {
  const report: HandoffReport = {
    handoffs: 0,
    fates: { ends: 0, SIGTERM: 0, SIGKILL: 0, SIGSTOP: 0 },
    alive: [],
    late: 0,
    wrongStatus: [],
    stopped: 0,
    lines: 0,
  }
  await Promise.all(Array.from({ length: options.lanes }, (_, lane) => oneLane(options, lane, report)))
  return report
}

async function oneLane(options: HandoffOptions, lane: number, report: HandoffReport): Promise<void> {
  const journal = join(options.folder, `lane-${lane}`)
  const ended: Promise<void>[] = []
  let holder = new Holder(options, `lane-${lane}`, journal)
  await holder.started
  for (let i = 0; i < options.handoffs; i++) {
    const next = new Holder(options, `lane-${lane}`, journal)
    // Sometimes the next holder waits in the queue by then, sometimes it has not asked yet.
    await sleep(options.random() * 700)
    holder.meetItsFate()
    await next.started
    report.handoffs++
    report.fates[holder.fate]++
    ended.push(holder.end(report))
    holder = next
  }
  holder.process.kill('SIGKILL')
  ended.push(holder.end(report, true))
  // The next run gets the lock only when all processes of the last holder are dead.
  const last = await plainRun(options, `lane-${lane}`)
  if (last.code !== 0) report.wrongStatus.push(`after the last: ${last.code} ${last.stderr.trim()}`)
  await Promise.all(ended)
  judge(readFileSync(journal, 'utf8').trimEnd().split('\n'), report)
}

/** Appending is atomic, so the order of the lines is the order of events: tokens never go back. */
function judge(lines: readonly string[], report: HandoffReport): void {
  let latest = 0n
  for (const line of lines) {
    const token = BigInt(line)
    if (token < latest) report.late++
    else latest = token
  }
  report.lines += lines.length
}

class Holder {
  readonly process: ChildProcess
  readonly fate: Fate
  readonly started: Promise<void>
  readonly #shape: (typeof SHAPES)[number]
  readonly #elects: boolean
  readonly #alive: string[] = []
  #stderr = ''

  constructor(options: HandoffOptions, name: string, journal: string) {
    const { random } = options
    this.#elects = options.command === 'elect'
    this.fate = pick(FATES, random)
    this.#shape = pick(SHAPES, random)
    const temper = random() < 0.5 ? 'stubborn' : 'polite'
    const lasts = this.fate === 'ends' ? '1' : this.fate === 'SIGTERM' ? 'term' : 'forever'
    const command = ['bash', HOLDER, journal, this.#shape, temper, lasts]
    this.process = spawn(process.execPath, [...runOf(options, name), ...command], {
      cwd: ROOT,
      stdio: ['ignore', 'pipe', 'pipe'],
    })
    this.process.stderr?.setEncoding('utf8').on('data', (text: string) => {
      this.#stderr += text
    })
    this.started = new Promise((resolve, reject) => {
      createInterface({ input: this.process.stdout as NodeJS.ReadableStream }).on('line', (line) => {
        if (line.startsWith('overlap')) this.#alive.push(line)
        if (line.startsWith('started')) resolve()
      })
      this.process.once('exit', (code) => reject(new Error(`never started (status ${code}): ${this.#stderr}`)))
    })
  }

  /** A holder that ends by itself gets no signal. */
  meetItsFate(): void {
    if (this.fate !== 'ends') this.process.kill(this.fate)
  }

  async end(report: HandoffReport, last = false): Promise<void> {
    if (this.fate === 'SIGSTOP') {
      // A candidate would campaign again as soon as it goes on.
      if (this.#elects) this.process.kill('SIGTERM')
      this.process.kill('SIGCONT')
    }
    if (this.process.exitCode === null && this.process.signalCode === null) await once(this.process, 'exit')
    report.alive.push(...this.#alive)
    if (last) return
    const { exitCode, signalCode } = this.process
    const fits = {
      ends: exitCode === 7,
      SIGTERM: exitCode === 143,
      SIGKILL: signalCode === 'SIGKILL',
      SIGSTOP: exitCode === 70 || (this.#elects && exitCode === 143),
    }
    if (exitCode === 70 && /could not be renewed in time|without a renewal that worked/.test(this.#stderr))
      report.stopped += Number(!fits[this.fate])
    else if (!fits[this.fate])
      report.wrongStatus.push(`${this.fate} ${this.#shape}: ${exitCode ?? signalCode} ${this.#stderr.trim()}`)
  }
}

async function plainRun(options: HandoffOptions, name: string): Promise<{ code: number | null; stderr: string }> {
  const child = spawn(process.execPath, [...runOf(options, name), 'true'], { stdio: ['ignore', 'ignore', 'pipe'] })
  let stderr = ''
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    stderr += text
  })
  await once(child, 'close')
  return { code: child.exitCode, stderr }
}

/** The arguments of node, up to the command. */
function runOf({ command = 'run', store, ttlMs }: HandoffOptions, name: string): string[] {
  const file = program(new URL('../../../src/cli/main.ts', import.meta.url))
  // A candidate waits without end.
  const wait = command === 'run' ? ['--wait', '60s'] : []
  return [file, command, name, '--ttl', `${ttlMs}ms`, '--kill-after', '500ms', ...wait, '--store', store, '--']
}

function pick<T>(from: readonly T[], random: () => number): T {
  return from[Math.floor(random() * from.length)] as T
}
