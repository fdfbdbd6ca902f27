/** Checks whether PostgreSQL accepts a session, without a client library. */
import { connect } from 'node:net'

const PROTOCOL_3 = 196_608

function startupMessage(parameters: Record<string, string>): Buffer {
  const text = Object.entries(parameters)
    .map(([name, value]) => `${name}\0${value}\0`)
    .join('')
  const body = Buffer.from(`${text}\0`)
  const head = Buffer.alloc(8)
  head.writeInt32BE(body.length + 8, 0)
  head.writeInt32BE(PROTOCOL_3, 4)
  return Buffer.concat([head, body])
}

/** The type bytes of the complete messages in `received`. */
function messageTypes(received: Buffer): string {
  let types = ''
  for (let at = 0; at + 5 <= received.length; ) {
    const end = at + 1 + received.readInt32BE(at + 1)
    if (end > received.length) break
    types += String.fromCharCode(received[at] as number)
    at = end
  }
  return types
}

/** Whether a session opens. An open port is not enough: PostgreSQL listens while it is still recovering. */
export function opensSession(port: number, withinMs = 2_000): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1')
    let received = Buffer.alloc(0)
    const finish = (ready: boolean) => {
      if (ready) socket.write(Buffer.from([0x58, 0, 0, 0, 4])) // Terminate, so that the server logs no complaint.
      socket.destroySoon()
      resolve(ready)
    }
    socket.setTimeout(withinMs, () => finish(false))
    socket.on('error', () => finish(false))
    socket.on('close', () => finish(false))
    socket.on('data', (chunk) => {
      received = Buffer.concat([received, chunk])
      const types = messageTypes(received)
      if (types.includes('Z')) finish(true)
      else if (types.includes('E')) finish(false)
    })
    socket.write(startupMessage({ user: 'postgres', database: 'postgres' }))
  })
}
