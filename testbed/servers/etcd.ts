/** Starts etcd, one node or a cluster. */
import { execFile } from 'node:child_process'
import { rm } from 'node:fs/promises'
import { get, type IncomingMessage } from 'node:http'
import { get as getTls } from 'node:https'
import { connect } from 'node:net'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { serverBinary } from './binaries.js'
import { type Certificates, makeCertificates } from './certificates.js'
import { EtcdNetwork } from './etcd-network.js'
import { type Port, reservePort } from './ports.js'
import {
  againIfPortTaken,
  LocalServer,
  makeHome,
  type ServerHome,
  type RestartOptions,
  type Server,
  stopAll,
  until,
} from './process.js'

export interface EtcdOptions {
  nodes?: number
  /**
   * TLS for clients. 'client-certificates': clients must present a certificate; `cert` and `key` of the result are
   * valid.
   */
  tls?: boolean | 'client-certificates'
  /** `cutOff()` then parts nodes from the others: their traffic goes through proxies. */
  network?: boolean
  /** Further flags of each node. */
  flags?: Readonly<Record<string, string>>
}

export interface EtcdNode extends Server {
  /** host:port */
  readonly host: string
}

/**
 * One etcd cluster. `port`, `pid` and `dir` are those of the first node; `kill`, `restart`, `freeze` and `thaw` affect
 * all nodes.
 */
export interface EtcdCluster extends Server {
  readonly nodes: EtcdNode[]
  /** http(s) addresses of the nodes. */
  readonly endpoints: string[]
  readonly ca: string | undefined
  readonly cert: string | undefined
  readonly key: string | undefined
  /** These nodes and the others no longer reach each other; clients reach all of them. */
  cutOff(nodes: readonly EtcdNode[]): void
  healNetwork(): void
  /** The node that leads right now. */
  leader(): Promise<EtcdNode>
  /** Runs etcdctl on the cluster. Resolves with what it prints. */
  ctl(...args: string[]): Promise<string>
}

function canConnect(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1')
    const finish = (yes: boolean) => {
      socket.destroy()
      resolve(yes)
    }
    socket.on('connect', () => finish(true)).on('error', () => finish(false))
  })
}

class EtcdProcess extends LocalServer implements EtcdNode {
  readonly name: string
  readonly #peerPort: Port
  readonly certificates: Certificates | undefined
  readonly #mustShow: boolean
  readonly #flags: Readonly<Record<string, string>>
  /** The port that the other nodes dial: of a proxy, or its own. */
  advertised: number
  /** Set once, when all nodes of the cluster have their ports. */
  cluster: EtcdProcess[] = []

  constructor(
    home: ServerHome,
    name: string,
    peerPort: Port,
    certificates: Certificates | undefined,
    { tls, flags = {} }: EtcdOptions,
  ) {
    super(home)
    this.name = name
    this.#peerPort = peerPort
    this.certificates = certificates
    this.#mustShow = tls === 'client-certificates'
    this.#flags = flags
    this.advertised = peerPort.number
  }

  get host(): string {
    return `127.0.0.1:${this.port}`
  }

  get endpoint(): string {
    return `${this.certificates ? 'https' : 'http'}://${this.host}`
  }

  get url(): string {
    return `${this.certificates ? 'etcds' : 'etcd'}://${this.host}`
  }

  get listenPort(): number {
    return this.#peerPort.number
  }

  get peerUrl(): string {
    return `http://127.0.0.1:${this.advertised}`
  }

  protected override commandLine(): string[] {
    const tls = this.certificates
    const flags = {
      name: this.name,
      'data-dir': join(this.dir, 'data'),
      'listen-client-urls': this.endpoint,
      'advertise-client-urls': this.endpoint,
      'listen-peer-urls': `http://127.0.0.1:${this.listenPort}`,
      'initial-advertise-peer-urls': this.peerUrl,
      'initial-cluster': this.cluster.map((node) => `${node.name}=${node.peerUrl}`).join(','),
      'initial-cluster-state': 'new',
      'initial-cluster-token': `leasehold-${this.cluster[0]?.port}`,
      // As since 3.5 by default: a node that stood still for a second does not depose a leader that is well.
      'pre-vote': 'true',
      logger: 'zap',
      'log-level': 'warn',
      ...(tls ? { 'cert-file': tls.certFile, 'key-file': tls.keyFile, 'trusted-ca-file': tls.caFile } : {}),
      ...(this.#mustShow ? { 'client-cert-auth': 'true' } : {}),
      ...this.#flags,
    }
    return [serverBinary('etcd'), ...Object.entries(flags).map(([name, value]) => `--${name}=${value}`)]
  }

  /** A node without a majority never answers clients, so its open peer port counts as ready. */
  protected override isReady(): Promise<boolean> {
    const running = this.cluster.filter((node) => node.running).length
    return running > this.cluster.length / 2 ? this.isHealthy() : canConnect(this.#peerPort.number)
  }

  isHealthy(): Promise<boolean> {
    const { ca, cert, key } = this.certificates ?? {}
    return new Promise((resolve) => {
      const answer = (response: IncomingMessage) => {
        let body = ''
        response.setEncoding('utf8').on('data', (chunk: string) => {
          body += chunk
        })
        response.on('end', () => resolve(body.includes('"health":"true"'))).on('error', () => resolve(false))
      }
      const url = `${this.endpoint}/health`
      const options = { agent: false, timeout: 2_000 } as const
      const request = ca === undefined ? get(url, options, answer) : getTls(url, { ...options, ca, cert, key }, answer)
      request.on('error', () => resolve(false)).on('timeout', () => request.destroy(new Error('no answer')))
    })
  }

  protected override async wipe(): Promise<void> {
    if (this.cluster.length > 1)
      throw new Error('a member of an etcd cluster cannot come back empty: restart the whole cluster')
    await this.forget()
  }

  async forget(): Promise<void> {
    await rm(join(this.dir, 'data'), { recursive: true, force: true })
  }

  override async stop(): Promise<void> {
    await super.stop()
    this.#peerPort.free()
  }
}

class LocalEtcd implements EtcdCluster {
  constructor(
    readonly nodes: EtcdProcess[],
    readonly network: EtcdNetwork | undefined,
  ) {}

  cutOff(nodes: readonly EtcdNode[]): void {
    if (!this.network) throw new Error('startEtcd({ network: true }) makes nodes that can be cut off')
    this.network.cutOff(nodes.map((node) => (node as EtcdProcess).advertised))
  }

  healNetwork(): void {
    this.network?.heal()
  }

  async leader(): Promise<EtcdNode> {
    const [id, leaders] = [new Map<number, EtcdProcess>(), new Map<number, number>()]
    for (const node of this.nodes.filter(({ running }) => running)) {
      const text = await this.#run(['endpoint', 'status', '-w', 'json'], node.endpoint).catch(() => '')
      // Ids have 64 bits: compared as they are rounded.
      const [status] = (text === '' ? [] : JSON.parse(text)) as {
        Status: { header: { member_id: number }; leader?: number }
      }[]
      if (!status?.Status.leader) continue
      id.set(status.Status.header.member_id, node)
      leaders.set(status.Status.leader, (leaders.get(status.Status.leader) ?? 0) + 1)
    }
    const [chosen] = [...leaders].sort(([, a], [, b]) => b - a)[0] ?? []
    const leader = chosen === undefined ? undefined : id.get(chosen)
    if (!leader) throw new Error('no node of the etcd cluster leads')
    return leader
  }

  ctl(...args: string[]): Promise<string> {
    return this.#run(args, this.endpoints.join(','))
  }

  async #run(args: readonly string[], endpoints: string): Promise<string> {
    const files = this.#first.certificates
    const tls = files ? ['--cacert', files.caFile, '--cert', files.certFile, '--key', files.keyFile] : []
    const env = { ...process.env, ETCDCTL_API: '3' }
    const options = ['--endpoints', endpoints, '--command-timeout', '5s', ...tls]
    const { stdout } = await promisify(execFile)(serverBinary('etcdctl'), [...options, ...args], { env })
    return stdout
  }

  get #first(): EtcdProcess {
    return this.nodes[0] as EtcdProcess
  }

  get port(): number {
    return this.#first.port
  }

  get pid(): number {
    return this.#first.pid
  }

  get dir(): string {
    return this.#first.dir
  }

  get url(): string {
    const scheme = this.#first.certificates ? 'etcds' : 'etcd'
    return `${scheme}://${this.nodes.map((node) => node.host).join(',')}`
  }

  get endpoints(): string[] {
    return this.nodes.map((node) => node.endpoint)
  }

  get ca(): string | undefined {
    return this.#first.certificates?.ca
  }

  get cert(): string | undefined {
    return this.#first.certificates?.cert
  }

  get key(): string | undefined {
    return this.#first.certificates?.key
  }

  async start(): Promise<void> {
    await Promise.all(this.nodes.map((node) => node.start()))
    await until('all etcd nodes are healthy', async () =>
      (await Promise.all(this.nodes.map((node) => node.isHealthy()))).every(Boolean),
    )
  }

  async kill(): Promise<void> {
    await Promise.all(this.nodes.map((node) => node.kill()))
  }

  async restart({ keepData, mode = 'fast' }: RestartOptions = {}): Promise<void> {
    // An orderly shutdown of all nodes of a cluster at once takes seconds, because each waits for a successor of its
    // leadership.
    // etcd syncs every write, so killing them loses nothing.
    const orderly = mode === 'fast' && this.nodes.length === 1
    await Promise.all(this.nodes.map((node) => (orderly ? node.shutDown() : node.kill())))
    if (keepData === false) await Promise.all(this.nodes.map((node) => node.forget()))
    await this.start()
  }

  async freeze(): Promise<void> {
    await Promise.all(this.nodes.map((node) => node.freeze()))
  }

  async thaw(): Promise<void> {
    await Promise.all(this.nodes.map((node) => node.thaw()))
  }

  stop(): Promise<void> {
    this.network?.stop()
    return stopAll(this.nodes)
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop()
  }
}

async function attempt(options: EtcdOptions): Promise<EtcdCluster> {
  const { nodes: count = 1, tls = false } = options
  const homes = await Promise.all(Array.from({ length: count }, () => makeHome({ name: 'etcd' })))
  // One authority for all nodes, in the directory of the first one.
  const certificates = tls ? await makeCertificates((homes[0] as ServerHome).dir) : undefined
  const nodes = await Promise.all(
    homes.map(async (home, index) => {
      const peerPort = await reservePort()
      return new EtcdProcess(home, `node${index}`, peerPort, certificates, options)
    }),
  )
  const network = options.network ? new EtcdNetwork() : undefined
  try {
    if (network) for (const node of nodes) node.advertised = await network.add(node.listenPort)
    for (const node of nodes) node.cluster = nodes
    const etcd = new LocalEtcd(nodes, network)
    await etcd.start()
    return etcd
  } catch (error) {
    network?.stop()
    await stopAll(nodes)
    throw error
  }
}

/** Starts etcd. Resolves when every node is healthy. */
export function startEtcd(options: EtcdOptions = {}): Promise<EtcdCluster> {
  return againIfPortTaken(() => attempt(options))
}
