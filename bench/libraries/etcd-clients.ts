// The same two requests, put if absent and delete, through three clients of etcd: what docs/adr/etcd-client.md decides by.
import { Agent, request as httpRequest } from 'node:http'
import { connect } from 'node:http2'
import type { OpenLocker } from './locker.js'

const base64 = (text: string): string => Buffer.from(text).toString('base64')

/** JSON over HTTP/1.1, which a gateway inside etcd translates. */
export const gateway: OpenLocker = async ({ address, prefix }) => {
  const { hostname, port } = new URL(address.urls[0] as string)
  const agent = new Agent({ keepAlive: true })
  const post = (path: string, body: object): Promise<{ succeeded?: boolean }> =>
    new Promise((resolve, reject) => {
      const sent = httpRequest({ hostname, port, path, method: 'POST', agent }, (response) => {
        let text = ''
        response.on('data', (chunk: Buffer) => (text += chunk))
        response.on('end', () => resolve(JSON.parse(text) as { succeeded?: boolean }))
      })
      sent.on('error', reject)
      sent.end(JSON.stringify(body))
    })
  return {
    async acquire(name) {
      const key = base64(name)
      const { succeeded } = await post('/v3/kv/txn', {
        compare: [{ key, target: 'CREATE', result: 'EQUAL', create_revision: '0' }],
        success: [{ request_put: { key, value: base64(prefix) } }],
      })
      if (!succeeded) throw new Error(`${name} is held`)
      return () => post('/v3/kv/deleterange', { key })
    },
  }
}

/** A field with a length, below 128 bytes each. */
const field = (number: number, ...parts: (Buffer | string)[]): Buffer => {
  const content = Buffer.concat(parts.map((part) => Buffer.from(part)))
  if (content.length > 127) throw new Error('longer than this codec can write')
  return Buffer.concat([Buffer.of(number * 8 + 2, content.length), content])
}

/** gRPC with what Node has. */
export const nodeHttp2: OpenLocker = async ({ address, prefix }) => {
  const session = connect(address.urls[0] as string)
  const call = (path: string, message: Buffer): Promise<Buffer> =>
    new Promise((resolve, reject) => {
      const headers = { ':method': 'POST', ':path': path, 'content-type': 'application/grpc', te: 'trailers' }
      const stream = session.request(headers)
      const chunks: Buffer[] = []
      stream.on('data', (chunk: Buffer) => chunks.push(chunk))
      stream.on('end', () => resolve(Buffer.concat(chunks)))
      stream.on('error', reject)
      const head = Buffer.alloc(5)
      head.writeUInt32BE(message.length, 1)
      stream.end(Buffer.concat([head, message]))
    })
  return {
    async acquire(name) {
      // The key does not exist: its create revision (target 1) is 0.
      const compare = field(1, Buffer.of(2 * 8, 1), field(3, name))
      const put = field(2, field(2, field(1, name), field(2, prefix)))
      const answer = await call('/etcdserverpb.KV/Txn', Buffer.concat([compare, put]))
      // `succeeded` is field 2 and comes behind the header.
      if (!answer.includes(Buffer.of(2 * 8, 1), 5)) throw new Error(`${name} is held`)
      return () => call('/etcdserverpb.KV/DeleteRange', field(1, name))
    },
  }
}
