import { rm } from 'node:fs/promises'
import { get, type IncomingMessage } from 'node:http'
import { get as getTls } from 'node:https'
import { connect } from 'node:net'
import { join } from 'node:path'
import { serverBinary } from './binaries.js'
import { type Certificates, makeCertificates } from './certificates.js'
import { type Port, reservePort } from './ports.js'
import {
  againIfPortTaken,
  LocalServer,
  makePlace,
  type Place,
  type RestartOptions,
  type Server,
  stopAll,
  until,
} from './process.js'

export interface EtcdOptions {
  nodes?: number
  /** TLS for clients. 'client-certificates': and they must show one; `cert` and `key` of the result will do. */
  tls?: boolean | 'client-certificates'
}

export interface EtcdNode extends Server {
  /** host:port */
  readonly host: string
}

/** One etcd: `port`, `pid` and `dir` are the first node's; `kill`, `restart`, `freeze` and `thaw` are for all nodes. */
export interface EtcdCluster extends Server {
  readonly nodes: EtcdNode[]
  /** http(s) addresses of the nodes. */
  readonly endpoints: string[]
  readonly ca: string | undefined
  readonly cert: string | undefined
  readonly key: string | undefined
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
  /** Set once, when all nodes of the cluster have their ports. */
  cluster: EtcdProcess[] = []

  constructor(place: Place, name: string, peerPort: Port, certificates: Certificates | undefined, mustShow: boolean) {
    super(place)
    this.name = name
    this.#peerPort = peerPort
    this.certificates = certificates
    this.#mustShow = mustShow
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

  get peerUrl(): string {
    return `http://127.0.0.1:${this.#peerPort.number}`
  }

  protected override commandLine(): string[] {
    const tls = this.certificates
    const flags = {
      name: this.name,
      'data-dir': join(this.dir, 'data'),
      'listen-client-urls': this.endpoint,
      'advertise-client-urls': this.endpoint,
      'listen-peer-urls': this.peerUrl,
      'initial-advertise-peer-urls': this.peerUrl,
      'initial-cluster': this.cluster.map((node) => `${node.name}=${node.peerUrl}`).join(','),
      'initial-cluster-state': 'new',
      'initial-cluster-token': `leasehold-${this.cluster[0]?.port}`,
      logger: 'zap',
      'log-level': 'warn',
      ...(tls ? { 'cert-file': tls.certFile, 'key-file': tls.keyFile, 'trusted-ca-file': tls.caFile } : {}),
      ...(this.#mustShow ? { 'client-cert-auth': 'true' } : {}),
    }
    return [serverBinary('etcd'), ...Object.entries(flags).map(([name, value]) => `--${name}=${value}`)]
  }

  /** A node without a majority never answers clients, so for such a one its open peer port must do. */
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
  constructor(readonly nodes: EtcdProcess[]) {}

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
    // All nodes of a cluster at once, in an orderly way: each would wait seconds for somebody to take over its leadership.
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
    return stopAll(this.nodes)
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop()
  }
}

async function attempt(count: number, tls: EtcdOptions['tls']): Promise<EtcdCluster> {
  const places = await Promise.all(Array.from({ length: count }, () => makePlace({ name: 'etcd' })))
  // One authority for all nodes; it lives in the first one's directory.
  const certificates = tls ? await makeCertificates((places[0] as Place).dir) : undefined
  const nodes = await Promise.all(
    places.map(async (place, index) => {
      const peerPort = await reservePort()
      return new EtcdProcess(place, `node${index}`, peerPort, certificates, tls === 'client-certificates')
    }),
  )
  try {
    for (const node of nodes) node.cluster = nodes
    const etcd = new LocalEtcd(nodes)
    await etcd.start()
    return etcd
  } catch (error) {
    await stopAll(nodes)
    throw error
  }
}

/** etcd, settled when every node is healthy. */
export function startEtcd({ nodes = 1, tls = false }: EtcdOptions = {}): Promise<EtcdCluster> {
  return againIfPortTaken(() => attempt(nodes, tls))
}
