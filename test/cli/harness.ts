/** Fixture of the command line's tests: real processes on a real SQLite file. */
import { type ChildProcess, spawn } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { afterAll, afterEach, vi } from 'vitest'
import { program } from '../../testbed/programs.js'

const root = fileURLToPath(new URL('../..', import.meta.url))

/** The most that a test waits for an event, in milliseconds: a busy machine takes seconds to start a process. */
const WAIT_MS = 60_000

vi.setConfig({ testTimeout: 2 * WAIT_MS })

export interface ProcessEnd {
  code: number | null
  signal: NodeJS.Signals | null
  stdout: string
  stderr: string
}

/** A process under test, with its output so far. */
export class TestProcess {
  readonly ended: Promise<ProcessEnd>
  stdout = ''
  stderr = ''
  readonly #child: ChildProcess

  constructor(child: ChildProcess) {
    this.#child = child
    child.stdout?.setEncoding('utf8').on('data', (text: string) => {
      this.stdout += text
    })
    child.stderr?.setEncoding('utf8').on('data', (text: string) => {
      this.stderr += text
    })
    this.ended = new Promise((resolve, reject) => {
      const end = (): void => {
        resolve({ code: child.exitCode, signal: child.signalCode, stdout: this.stdout, stderr: this.stderr })
      }
      child.on('error', reject)
      child.on('close', end)
      // A process that was left behind may keep the pipes open.
      child.on('exit', () => setTimeout(end, 1_000))
    })
  }

  get pid(): number {
    return this.#child.pid as number
  }

  type(text: string): void {
    this.#child.stdin?.write(text)
  }

  closeStdin(): void {
    this.#child.stdin?.end()
  }

  signal(signal: NodeJS.Signals): void {
    process.kill(this.pid, signal)
  }

  /** Waits until stdout contains this. */
  async says(text: string): Promise<void> {
    await until(
      `${JSON.stringify(text)} is printed`,
      () => this.stdout.includes(text),
      () => this.stdout + this.stderr,
    )
  }
}

/** A directory with a store of its own. Processes that were started with it are killed after each test. */
export class CliFixture {
  readonly folder: string = mkdtempSync(join(tmpdir(), 'leasehold-cli-'))
  readonly store: string = `sqlite:${this.folder}/locks.db`
  /** How to start the command line from its source. */
  readonly program: readonly string[] = [process.execPath, program(new URL('../../src/cli/main.ts', import.meta.url))]
  readonly #children = new Set<ChildProcess>()

  constructor() {
    afterEach(() => {
      for (const child of this.#children) if (child.exitCode === null) child.kill('SIGKILL')
      this.#children.clear()
    })
    afterAll(() => rmSync(this.folder, { recursive: true, force: true }))
  }

  path(name: string): string {
    return join(this.folder, name)
  }

  exists(name: string): boolean {
    return existsSync(this.path(name))
  }

  read(name: string): string {
    return this.exists(name) ? readFileSync(this.path(name), 'utf8') : ''
  }

  leasehold(...args: string[]): TestProcess {
    return this.start([...this.program, ...args])
  }

  start(command: readonly string[], env: Record<string, string> = {}): TestProcess {
    const [file, ...args] = command as [string, ...string[]]
    const child = spawn(file, args, {
      cwd: root,
      env: { ...process.env, LEASEHOLD_STORE: this.store, FIXTURE: this.folder, ...env },
    })
    this.#children.add(child)
    return new TestProcess(child)
  }

  /** Runs a line of shell in a real terminal: `script` (util-linux) makes one and types into it what it gets on stdin. */
  inTerminal(line: string, env: Record<string, string> = {}): TestProcess {
    const script = ['script', '--quiet', '--flush', '--return', '--command', line, '/dev/null']
    return this.start(script, { SHELL: '/bin/sh', ...env })
  }

  /** Waits for a line that a command writes to a file, such as its process ID, and returns it. */
  async waitForFile(name: string): Promise<string> {
    await until(`${name} appears`, () => this.read(name).endsWith('\n'))
    return this.read(name).trim()
  }
}

/** Waits for an event in another process. */
export async function until(
  what: string,
  happened: () => boolean | Promise<boolean>,
  more: () => string = () => '',
): Promise<void> {
  const deadline = performance.now() + WAIT_MS
  while (!(await happened())) {
    if (performance.now() > deadline) throw new Error(`waited ${WAIT_MS} ms until ${what}: ${more()}`)
    await sleep(10)
  }
}

/** Whether the process can still do something: a zombie cannot. */
export function isAlive(pid: number): boolean {
  const state = statOf(pid)?.state
  return state !== undefined && state !== 'Z'
}

/** The watchdogs that belong to this `leasehold run`. */
export function watchdogsOf(pid: number): number[] {
  return readdirSync('/proc')
    .map(Number)
    .filter(
      (one) => one > 0 && statOf(one)?.parent === pid && isAlive(one) && commandLine(one).includes('cli/watchdog.js'),
    )
}

function commandLine(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8')
  } catch {
    return ''
  }
}

function statOf(pid: number): { state: string; parent: number } | undefined {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'latin1')
    const [state = '', parent] = text.slice(text.lastIndexOf(')') + 2).split(' ')
    return { state, parent: Number(parent) }
  } catch {
    return undefined
  }
}
