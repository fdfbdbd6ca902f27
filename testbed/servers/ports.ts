import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import { createServer } from 'node:net'

// Ports of test servers. Two dangers: a parallel worker picks the same port, and another program takes the port of a
// server that is down for a restart. So ports are below the ephemeral range (no outgoing connection gets one by
// accident), and each is reserved for the life of the server by binding the UDP port of the same number, which nothing
// here uses and which the kernel frees even after kill -9.

const LOWEST = 10_000
/**
 * HIGHEST: the largest port. Below 22768, so that port + 10000 (the bus of a Redis cluster node) is below the ephemeral
 * range (32768) as well.
 */
const HIGHEST = 22_000
const CLUSTER_BUS = 10_000

export interface Port {
  readonly number: number
  free(): void
}

async function claim(number: number): Promise<(() => void) | undefined> {
  const udp = createSocket('udp4')
  udp.unref()
  udp.bind({ port: number, address: '127.0.0.1', exclusive: true })
  try {
    await once(udp, 'listening')
    return () => udp.close()
  } catch {
    return undefined
  }
}

async function isListenable(number: number): Promise<boolean> {
  const server = createServer().listen({ port: number, host: '127.0.0.1', exclusive: true })
  try {
    await once(server, 'listening')
  } catch {
    return false
  }
  server.close()
  await once(server, 'close')
  return true
}

async function tryPort(number: number, alsoBus: boolean): Promise<Port | undefined> {
  const numbers = alsoBus ? [number, number + CLUSTER_BUS] : [number]
  const claims: (() => void)[] = []
  const free = () => {
    for (const release of claims.splice(0)) release()
  }
  for (const each of numbers) {
    const release = await claim(each)
    if (release) claims.push(release)
    if (!release || !(await isListenable(each))) {
      free()
      return undefined
    }
  }
  return { number, free }
}

/** Reserves a port of 127.0.0.1 until `free()`. With `wanted`: that port, or an error. */
export async function reservePort({
  wanted,
  alsoBus = false,
}: {
  wanted?: number | undefined
  alsoBus?: boolean
} = {}): Promise<Port> {
  if (wanted !== undefined) {
    const port = await tryPort(wanted, alsoBus)
    if (!port) throw new Error(`port ${wanted} is in use`)
    return port
  }
  for (let attempt = 0; attempt < 200; attempt++) {
    const port = await tryPort(LOWEST + Math.floor(Math.random() * (HIGHEST - LOWEST)), alsoBus)
    if (port) return port
  }
  throw new Error(`no free port found between ${LOWEST} and ${HIGHEST}`)
}
