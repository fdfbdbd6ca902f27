import { connect, type Socket } from 'node:net'
import { connect as connectTls } from 'node:tls'

// Just enough of the Redis protocol to check whether a server is ready and to set up a cluster. So the testbed needs no
// client library, which may be the one under test.

export type RespReply = string | number | null | RespReply[]

export interface RespTarget {
  port: number
  password?: string | undefined
  /** PEM of the certificate authority. Present: the connection uses TLS. */
  ca?: string | undefined
}

/**
 * The reply at `at` and where the next one begins, or undefined while it is incomplete. Errors are returned, not
 * thrown.
 */
function parse(text: string, at: number): { value: RespReply | Error; next: number } | undefined {
  const end = text.indexOf('\r\n', at)
  if (end < 0) return undefined
  const head = text.slice(at + 1, end)
  const next = end + 2
  switch (text[at]) {
    case '+':
      return { value: head, next }
    case '-':
      return { value: new Error(head), next }
    case ':':
      return { value: Number(head), next }
    case '$': {
      const length = Number(head)
      if (length < 0) return { value: null, next }
      return text.length < next + length + 2
        ? undefined
        : { value: text.slice(next, next + length), next: next + length + 2 }
    }
    case '*':
      return parseArray(text, next, Number(head))
    default:
      throw new Error(`not a Redis reply: ${JSON.stringify(text.slice(at, at + 40))}`)
  }
}

function parseArray(text: string, at: number, length: number): { value: RespReply; next: number } | undefined {
  if (length < 0) return { value: null, next: at }
  const values: RespReply[] = []
  let next = at
  for (let index = 0; index < length; index++) {
    const element = parse(text, next)
    if (!element) return undefined
    values.push(element.value instanceof Error ? element.value.message : element.value)
    next = element.next
  }
  return { value: values, next }
}

function encode(args: string[]): string {
  return `*${args.length}\r\n${args.map((arg) => `$${Buffer.byteLength(arg, 'latin1')}\r\n${arg}\r\n`).join('')}`
}

/** Runs one command on a separate connection. Text is Latin-1, one character per byte. */
export function redisCommand({ port, password, ca }: RespTarget, args: string[], withinMs = 2_000): Promise<RespReply> {
  const commands = password === undefined ? [args] : [['AUTH', password], args]
  return new Promise((resolve, reject) => {
    const socket: Socket = ca === undefined ? connect(port, '127.0.0.1') : connectTls({ port, host: '127.0.0.1', ca })
    let received = ''
    const finish = (outcome: RespReply | Error) => {
      socket.destroy()
      if (outcome instanceof Error) reject(outcome)
      else resolve(outcome)
    }
    socket.setEncoding('latin1')
    socket.setTimeout(withinMs, () => finish(new Error(`no answer to ${args[0]} within ${withinMs} ms`)))
    socket.on('error', finish)
    socket.on('close', () => finish(new Error(`connection closed before the answer to ${args[0]}`)))
    socket.on('data', (chunk: string) => {
      received += chunk
      let at = 0
      for (let index = 0; index < commands.length; index++) {
        const reply = parse(received, at)
        if (!reply) return
        if (reply.value instanceof Error || index === commands.length - 1) return finish(reply.value)
        at = reply.next
      }
    })
    socket.write(commands.map(encode).join(''), 'latin1')
  })
}
