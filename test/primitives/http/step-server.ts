import { createServer, type IncomingMessage, request, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { onTestFinished } from 'vitest'

type Next = (error?: unknown) => void
export type Step = (request: IncomingMessage & { body?: unknown }, response: ServerResponse, next: Next) => unknown

/** A real HTTP server that calls these one after the other, as Connect and Express do. Its address. */
export async function serveSteps(...steps: Step[]): Promise<string> {
  const server = createServer((incoming, outgoing) => {
    const go = (i: number): void => {
      const next: Next = (error) => {
        if (error === undefined) return go(i + 1)
        outgoing.statusCode = 500
        outgoing.end((error as Error).name)
      }
      steps[i]?.(incoming, outgoing, next)
    }
    go(0)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  onTestFinished(() => {
    server.closeAllConnections()
    server.close()
  })
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}

/** Parses JSON bodies, as body parsers do. */
export const parseJson: Step = (incoming, _, next) => {
  const chunks: Buffer[] = []
  incoming.on('data', (chunk: Buffer) => chunks.push(chunk))
  incoming.on('end', () => {
    const text = Buffer.concat(chunks).toString()
    if (text !== '') incoming.body = JSON.parse(text)
    next()
  })
}

/** One request on a connection that the client gives up before the answer. */
export function giveUp(url: string, headers: Record<string, string>, body: string, afterMs: number): Promise<void> {
  return new Promise((resolve) => {
    const outgoing = request(url, { method: 'POST', headers })
    outgoing.on('error', () => resolve())
    outgoing.end(body)
    setTimeout(() => outgoing.destroy(new Error('gone')), afterMs)
  })
}
