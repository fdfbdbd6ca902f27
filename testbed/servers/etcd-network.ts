/** The network between the nodes of an etcd cluster, so that some of them can be cut off from the others. */
import { once } from 'node:events'
import { connect, createServer, type Server as NetServer, type Socket } from 'node:net'
import { type Port, reservePort } from './ports.js'

interface Link {
  /** The advertised port of the node that dialled, once its first request has named it. */
  from: number | undefined
  ends: readonly [Socket, Socket]
}

/** All connections to one node. Its port is the one that the node advertises to the others. */
class Entrance {
  readonly links = new Set<Link>()

  constructor(
    readonly network: EtcdNetwork,
    readonly port: Port,
    readonly target: number,
    readonly server: NetServer,
  ) {}

  serve(client: Socket): void {
    const upstream = connect(this.target, '127.0.0.1')
    const link: Link = { from: undefined, ends: [client, upstream] }
    this.links.add(link)
    const end = (): void => {
      this.links.delete(link)
      for (const socket of link.ends) socket.destroy()
    }
    for (const socket of link.ends) socket.setNoDelay(true).on('error', end).on('close', end)
    client.on('data', (chunk: Buffer) => {
      // Every request between nodes says who sends it.
      const named = /X-PeerURLs: \S*?:(\d+)/i.exec(chunk.toString('latin1'))
      link.from ??= named ? Number(named[1]) : undefined
      if (this.network.isCut(link.from, this.port.number)) end()
      else upstream.write(chunk)
    })
    upstream.on('data', (chunk: Buffer) => client.write(chunk))
    if (this.network.isCut(undefined, this.port.number)) end()
  }

  cut(): void {
    for (const { from, ends } of this.links) {
      if (this.network.isCut(from, this.port.number)) for (const socket of ends) socket.destroy()
    }
  }
}

export class EtcdNetwork {
  readonly #entrances: Entrance[] = []
  /** Advertised ports of the nodes on the far side. */
  #cutOff = new Set<number>()

  /** The port that a node advertises, in front of the one it listens on. */
  async add(target: number): Promise<number> {
    const port = await reservePort()
    const server = createServer((client) => entrance.serve(client))
    const entrance = new Entrance(this, port, target, server)
    this.#entrances.push(entrance)
    server.listen({ port: port.number, host: '127.0.0.1', exclusive: true })
    await once(server, 'listening')
    server.unref()
    return port.number
  }

  isCut(from: number | undefined, to: number): boolean {
    if (from === undefined) return false
    return this.#cutOff.has(from) !== this.#cutOff.has(to)
  }

  /** These nodes and the others no longer reach each other. Clients still reach all of them. */
  cutOff(ports: readonly number[]): void {
    this.#cutOff = new Set(ports)
    for (const entrance of this.#entrances) entrance.cut()
  }

  heal(): void {
    this.#cutOff.clear()
  }

  stop(): void {
    for (const { server, links, port } of this.#entrances) {
      server.close()
      for (const { ends } of links) for (const socket of ends) socket.destroy()
      port.free()
    }
  }
}
