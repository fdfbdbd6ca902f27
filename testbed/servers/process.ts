/** What all servers share: start, stop, kill, freeze and restart on the same port. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Port, reservePort } from './ports.js'
import { reaper } from './reaper.js'
import type { SystemUser } from './user.js'

export interface RestartOptions {
  /** true: all data is kept. false: the server starts empty. Absent: as the settings of this server imply. */
  keepData?: boolean
  /** fast: an orderly shutdown (default). immediate: as after a crash. */
  mode?: 'fast' | 'immediate'
}

export interface Server extends AsyncDisposable {
  readonly port: number
  readonly url: string
  /** The id of the running process. It changes with `restart()`. */
  readonly pid: number
  readonly dir: string
  /** Ends the process, removes its directory and frees its port. */
  stop(): Promise<void>
  /** Sends SIGKILL. Resolves when the process is gone. `restart()` starts it again on the same port. */
  kill(): Promise<void>
  /** Restarts on the same port, also after `kill()`. */
  restart(how?: RestartOptions): Promise<void>
  /** Sends SIGSTOP: connections stay open and no request is answered. */
  freeze(): Promise<void>
  thaw(): Promise<void>
}

const START_WITHIN_MS = 30_000
const SHUT_DOWN_WITHIN_MS = 30_000
const POLL_MS = 20

export class StartError extends Error {
  readonly portTaken: boolean

  constructor(what: string, log: string) {
    super(`${what}\n${log.trim().split('\n').slice(-15).join('\n')}`)
    this.name = 'StartError'
    this.portTaken = /address already in use/i.test(log)
  }
}

/** Polls until `condition` holds. The error says what was awaited. */
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

/** What all servers share: a directory, a port, and a process that can be restarted on both. */
export abstract class LocalServer implements Server {
  readonly dir: string
  readonly port: number
  readonly #port: Port
  readonly #runAs: SystemUser | undefined
  #pid: number | undefined
  #stopped = false

  constructor(home: ServerHome) {
    this.dir = home.dir
    this.port = home.port.number
    this.#port = home.port
    this.#runAs = home.runAs
  }

  abstract get url(): string
  /** The command line, computed for every start. */
  protected abstract commandLine(): string[]
  /** One quick check whether the server answers. A refused connection is false, not an error. */
  protected abstract isReady(): Promise<boolean>
  /** Removes the data while the server is down. */
  protected abstract wipe(): Promise<void>
  /** The signal of an orderly shutdown, and the signal of an immediate one. */
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
    // A stopped process accepts no signal but SIGKILL.
    if (signal !== 'SIGKILL') await reaper().signal(pid, 'SIGCONT')
    await reaper().signal(pid, signal)
    if (!(await reaper().awaitExit(pid, SHUT_DOWN_WITHIN_MS))) {
      throw new Error(
        `the server of ${this.url} did not end within ${SHUT_DOWN_WITHIN_MS} ms of ${signal}\n${this.log}`,
      )
    }
    this.#pid = undefined
  }

  /** Ends the process in an orderly way. `start()` or `restart()` starts it again. */
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

/** The directory and port of a server. */
export interface ServerHome {
  dir: string
  port: Port
  runAs: SystemUser | undefined
}

export interface HomeOptions {
  /** Part of the directory's name, so that a person can tell what it belongs to. */
  name: string
  port?: number | undefined
  alsoBus?: boolean
  runAs?: SystemUser | undefined
}

export async function makeHome({ name, port: wanted, alsoBus = false, runAs }: HomeOptions): Promise<ServerHome> {
  const port = await reservePort({ wanted, alsoBus })
  try {
    return { dir: await reaper().makeDir(`leasehold-${name}-`, runAs), port, runAs }
  } catch (error) {
    port.free()
    throw error
  }
}

/**
 * Starts the server that `make` returns. Retries with another port if another program took it between the check and the
 * bind.
 */
export function startIn<T extends LocalServer>(
  options: HomeOptions,
  make: (home: ServerHome) => T | Promise<T>,
): Promise<T> {
  return againIfPortTaken(async () => {
    const home = await makeHome(options)
    try {
      const server = await make(home)
      await server.start()
      return server
    } catch (error) {
      await reaper().remove(home.dir)
      home.port.free()
      throw error
    }
  })
}

/** Stops all servers, even if one of them fails to stop. */
export async function stopAll(servers: Iterable<Pick<Server, 'stop'>>): Promise<void> {
  const outcomes = await Promise.allSettled([...servers].map((server) => server.stop()))
  const failed = outcomes.find((outcome) => outcome.status === 'rejected')
  if (failed) throw failed.reason
}

/**
 * Starts several servers that must know each other's ports beforehand. Retries all of them if a port was taken
 * meanwhile.
 */
export async function againIfPortTaken<T>(attempt: () => Promise<T>): Promise<T> {
  for (let tries = 1; ; tries++) {
    try {
      return await attempt()
    } catch (error) {
      if (!(error instanceof StartError && error.portTaken && tries < 5)) throw error
    }
  }
}
