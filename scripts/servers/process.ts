import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Port, reservePort } from './ports.js'
import { reaper } from './reaper.js'
import type { SystemUser } from './user.js'

export interface RestartOptions {
  /** true: everything is there afterwards. false: it comes back empty. Left out: whatever this server's own settings imply. */
  keepData?: boolean
  /** fast: an orderly shutdown (default). immediate: as if it had crashed. */
  mode?: 'fast' | 'immediate'
}

export interface Server extends AsyncDisposable {
  readonly port: number
  readonly url: string
  /** Of the running process; another one after `restart()`. */
  readonly pid: number
  readonly dir: string
  /** The end: process, directory and port are given back. */
  stop(): Promise<void>
  /** SIGKILL, settled when the process is gone. `restart()` brings it back on the same port. */
  kill(): Promise<void>
  /** On the same port, also after `kill()`. */
  restart(how?: RestartOptions): Promise<void>
  /** SIGSTOP: connections stay open and nobody answers. */
  freeze(): Promise<void>
  thaw(): Promise<void>
}

const START_WITHIN_MS = 30_000
const SHUT_DOWN_WITHIN_MS = 10_000
const POLL_MS = 20

export class StartError extends Error {
  readonly portTaken: boolean

  constructor(what: string, log: string) {
    super(`${what}\n${log.trim().split('\n').slice(-15).join('\n')}`)
    this.name = 'StartError'
    this.portTaken = /address already in use/i.test(log)
  }
}

/** Polls until `condition` holds; the error says what was awaited. */
export async function until(
  what: string,
  condition: () => Promise<boolean> | boolean,
  withinMs: number = START_WITHIN_MS,
): Promise<void> {
  const deadline = performance.now() + withinMs
  while (!(await condition())) {
    if (performance.now() > deadline) throw new Error(`waited ${withinMs} ms in vain until ${what}`)
    await sleep(POLL_MS)
  }
}

/** What all servers share: a directory, a port, a process that can be started again on both. */
export abstract class LocalServer implements Server {
  readonly dir: string
  readonly port: number
  readonly #port: Port
  readonly #runAs: SystemUser | undefined
  #pid: number | undefined
  #stopped = false

  constructor(place: Place) {
    this.dir = place.dir
    this.port = place.port.number
    this.#port = place.port
    this.#runAs = place.runAs
  }

  abstract get url(): string
  /** The command line, asked for anew at every start. */
  protected abstract commandLine(): string[]
  /** One quick look whether it serves. A refused connection is false, not an error. */
  protected abstract isReady(): Promise<boolean>
  /** Forgets the data while the server is down. */
  protected abstract wipe(): Promise<void>
  /** The signal of an orderly shutdown, and the one that ends it without one. */
  protected readonly signals: { fast: NodeJS.Signals; immediate: NodeJS.Signals } = {
    fast: 'SIGTERM',
    immediate: 'SIGKILL',
  }

  get pid(): number {
    if (this.#pid === undefined) throw new Error(`the server of ${this.url} is not running`)
    return this.#pid
  }

  get running(): boolean {
    return this.#pid !== undefined
  }

  get log(): string {
    return readFileSync(join(this.dir, 'log'), 'utf8')
  }

  async start(): Promise<void> {
    const pid = await reaper().spawn(this.dir, this.commandLine(), 'log', this.#runAs)
    this.#pid = pid
    void reaper()
      .exitOf(pid)
      .then(() => {
        if (this.#pid === pid) this.#pid = undefined
      })
    const deadline = performance.now() + START_WITHIN_MS
    while (!(await this.isReady())) {
      if (!this.running) throw new StartError(`${this.commandLine()[0]} ended while starting`, this.log)
      if (performance.now() > deadline) throw new StartError(`${this.commandLine()[0]} was not ready in time`, this.log)
      await sleep(POLL_MS)
    }
  }

  async #end(signal: NodeJS.Signals): Promise<void> {
    const pid = this.#pid
    if (pid === undefined) return
    // A stopped process takes no signal but SIGKILL.
    if (signal !== 'SIGKILL') await reaper().signal(pid, 'SIGCONT')
    await reaper().signal(pid, signal)
    if (!(await reaper().awaitExit(pid, SHUT_DOWN_WITHIN_MS))) {
      throw new Error(
        `the server of ${this.url} did not end within ${SHUT_DOWN_WITHIN_MS} ms of ${signal}\n${this.log}`,
      )
    }
    this.#pid = undefined
  }

  /** An orderly end; `start()` or `restart()` brings it back. */
  async shutDown(): Promise<void> {
    await this.#end(this.signals.fast)
  }

  async kill(): Promise<void> {
    await this.#end('SIGKILL')
  }

  async restart({ keepData, mode = 'fast' }: RestartOptions = {}): Promise<void> {
    if (this.#stopped) throw new Error(`the server of ${this.url} was stopped for good`)
    if (keepData) await this.prepareToKeepData(mode)
    await this.#end(this.signals[mode])
    if (keepData === false) await this.wipe()
    await this.start()
  }

  /** Throws if the data would not survive. */
  protected async prepareToKeepData(_mode: 'fast' | 'immediate'): Promise<void> {}

  async freeze(): Promise<void> {
    await reaper().signal(this.pid, 'SIGSTOP')
  }

  async thaw(): Promise<void> {
    await reaper().signal(this.pid, 'SIGCONT')
  }

  async stop(): Promise<void> {
    if (this.#stopped) return
    this.#stopped = true
    await reaper().remove(this.dir)
    this.#pid = undefined
    this.#port.free()
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop()
  }
}

/** Where a server lives. */
export interface Place {
  dir: string
  port: Port
  runAs: SystemUser | undefined
}

export interface PlaceOptions {
  /** Part of the directory's name, for whoever looks into the temporary directory. */
  name: string
  port?: number | undefined
  alsoBus?: boolean
  runAs?: SystemUser | undefined
}

export async function makePlace({ name, port: wanted, alsoBus = false, runAs }: PlaceOptions): Promise<Place> {
  const port = await reservePort({ wanted, alsoBus })
  try {
    return { dir: await reaper().makeDir(`leasehold-${name}-`, runAs), port, runAs }
  } catch (error) {
    port.free()
    throw error
  }
}

/** Starts what `make` returns; with another port if somebody took ours between the look and the bind. */
export function startIn<T extends LocalServer>(
  options: PlaceOptions,
  make: (place: Place) => T | Promise<T>,
): Promise<T> {
  return againIfPortTaken(async () => {
    const place = await makePlace(options)
    try {
      const server = await make(place)
      await server.start()
      return server
    } catch (error) {
      await reaper().remove(place.dir)
      place.port.free()
      throw error
    }
  })
}

/** Stops all, also when one of them fails to. */
export async function stopAll(servers: Iterable<Pick<Server, 'stop'>>): Promise<void> {
  const outcomes = await Promise.allSettled([...servers].map((server) => server.stop()))
  const failed = outcomes.find((outcome) => outcome.status === 'rejected')
  if (failed) throw failed.reason
}

/** Several servers that must know each other's ports before they start: all anew if one of the ports was taken meanwhile. */
export async function againIfPortTaken<T>(attempt: () => Promise<T>): Promise<T> {
  for (let tries = 1; ; tries++) {
    try {
      return await attempt()
    } catch (error) {
      if (!(error instanceof StartError && error.portTaken && tries < 5)) throw error
    }
  }
}
