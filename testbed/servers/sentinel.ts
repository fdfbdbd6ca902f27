/** Starts a Redis master with replicas and sentinels. */
import { randomBytes } from 'node:crypto'
import { againIfPortTaken, makeHome, stopAll, until } from './process.js'
import { launchRedis, RedisProcess, type RedisServer } from './redis.js'

export interface SentinelOptions {
  replicas?: number
  sentinels?: number
  /** A master that is silent for this long is down. */
  downAfterMs?: number
}

export interface SentinelSetup extends AsyncDisposable {
  /** The master at the start. After a failover, see `currentMaster()`. */
  readonly master: RedisServer
  readonly replicas: RedisServer[]
  readonly sentinels: RedisServer[]
  readonly masterName: string
  readonly url: string
  /** The master that all reachable sentinels agree on. Rejects while they disagree. */
  currentMaster(): Promise<RedisServer>
  stop(): Promise<void>
}

const MASTER_NAME = 'mymaster'

/** The reply of SENTINEL MASTER is a flat list of names and values. */
function facts(reply: unknown): Record<string, string> {
  const list = reply as string[]
  return Object.fromEntries(list.flatMap((name, index) => (index % 2 === 0 ? [[name, list[index + 1] as string]] : [])))
}

async function makeSentinels(count: number, data: RedisServer[], downAfterMs: number): Promise<RedisProcess[]> {
  const [master, ...replicas] = data as [RedisServer, ...RedisServer[]]
  const homes = await Promise.all(Array.from({ length: count }, () => makeHome({ name: 'sentinel' })))
  const ids = homes.map(() => randomBytes(20).toString('hex'))
  const quorum = Math.floor(count / 2) + 1
  return Promise.all(
    homes.map(async (home, self) => {
      // All members are known from the start: discovery through the channel of the master takes seconds.
      const known = [
        ...replicas.map(({ port }) => `sentinel known-replica ${MASTER_NAME} 127.0.0.1 ${port}`),
        ...homes.flatMap((other, index) =>
          index === self ? [] : [`sentinel known-sentinel ${MASTER_NAME} 127.0.0.1 ${other.port.number} ${ids[index]}`],
        ),
      ]
      const config = [
        `sentinel myid ${ids[self]}`,
        `sentinel monitor ${MASTER_NAME} 127.0.0.1 ${master.port} ${quorum}`,
        `sentinel down-after-milliseconds ${MASTER_NAME} ${downAfterMs}`,
        `sentinel failover-timeout ${MASTER_NAME} 5000`,
        ...known,
      ]
      const sentinel = new RedisProcess(home, {}, { config, binary: 'redis-sentinel' })
      await sentinel.writeConfig()
      return sentinel
    }),
  )
}

class LocalSentinelSetup implements SentinelSetup {
  readonly masterName: string = MASTER_NAME

  constructor(
    readonly master: RedisProcess,
    readonly replicas: RedisProcess[],
    readonly sentinels: RedisProcess[],
  ) {}

  get url(): string {
    return `redis+sentinel://${this.sentinels.map(({ port }) => `127.0.0.1:${port}`).join(',')}/${MASTER_NAME}`
  }

  async currentMaster(): Promise<RedisServer> {
    const asked = this.sentinels.filter((sentinel) => sentinel.running)
    const answers = await Promise.all(
      asked.map((sentinel) => sentinel.command('SENTINEL', 'GET-MASTER-ADDR-BY-NAME', MASTER_NAME)),
    )
    const ports = new Set(answers.map((answer) => Number((answer as string[])[1])))
    const master = [this.master, ...this.replicas].find(({ port }) => ports.has(port))
    if (!master || ports.size !== 1) throw new Error(`the sentinels name ${[...ports].join(' and ')}`)
    return master
  }

  async ready(): Promise<void> {
    await until('the replicas follow', async () => {
      const states = await Promise.all(this.replicas.map((replica) => replica.command('INFO', 'replication')))
      return states.every((state) => String(state).includes('master_link_status:up'))
    })
    await until('the sentinels agree', async () =>
      (await Promise.all(this.sentinels.map((each) => this.#sees(each)))).every(Boolean),
    )
  }

  async #sees(sentinel: RedisProcess): Promise<boolean> {
    const seen = facts(await sentinel.command('SENTINEL', 'MASTER', MASTER_NAME))
    const quorum = String(await sentinel.command('SENTINEL', 'CKQUORUM', MASTER_NAME).catch(() => ''))
    const replicas = (await sentinel.command('SENTINEL', 'REPLICAS', MASTER_NAME)) as unknown[]
    return (
      seen.flags === 'master' &&
      seen['num-other-sentinels'] === String(this.sentinels.length - 1) &&
      quorum.startsWith('OK') &&
      replicas.length === this.replicas.length &&
      replicas.map(facts).every((replica) => replica.flags === 'slave' && replica['master-link-status'] === 'ok')
    )
  }

  stop(): Promise<void> {
    return stopAll([...this.sentinels, ...this.replicas, this.master])
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop()
  }
}

async function attempt(replicas: number, sentinels: number, downAfterMs: number): Promise<SentinelSetup> {
  const fast = ['repl-diskless-sync-delay 0', 'repl-ping-replica-period 1']
  const started: RedisProcess[] = []
  try {
    const master = await launchRedis({}, { config: fast })
    started.push(master)
    const config = [...fast, `replicaof 127.0.0.1 ${master.port}`]
    const following = await Promise.all(Array.from({ length: replicas }, () => launchRedis({}, { config })))
    started.push(...following)
    const watching = await makeSentinels(sentinels, [master, ...following], downAfterMs)
    started.push(...watching)
    await Promise.all(watching.map((sentinel) => sentinel.start()))
    const setup = new LocalSentinelSetup(master, following, watching)
    await setup.ready()
    return setup
  } catch (error) {
    await stopAll(started)
    throw error
  }
}

/** Starts a master, its replicas and their sentinels. Resolves when the sentinels could carry out a failover. */
export function startSentinel({
  replicas = 2,
  sentinels = 3,
  downAfterMs = 1_000,
}: SentinelOptions = {}): Promise<SentinelSetup> {
  return againIfPortTaken(() => attempt(replicas, sentinels, downAfterMs))
}
