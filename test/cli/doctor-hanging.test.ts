/** `doctor` on servers that accept connections and never answer, and on ports where nobody listens. */
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { diagnose } from '../../src/doctor/index.js'

const sockets = new Set<Socket>()
let mute: Server
let port: number
beforeAll(async () => {
  mute = createServer((socket) => {
    sockets.add(socket)
    socket.on('error', () => {})
    socket.resume()
  })
  await new Promise<void>((resolve) => mute.listen(0, '127.0.0.1', resolve))
  port = (mute.address() as AddressInfo).port
})
afterAll(() => {
  for (const socket of sockets) socket.destroy()
  mute.close()
})

const URLS = [
  'redis://ada:hunter2@HOST',
  'redis+cluster://ada:hunter2@HOST,HOST',
  'redis+sentinel://ada:hunter2@HOST,HOST/main',
  'rediss://ada:hunter2@HOST',
  'redlock://ada:hunter2@HOST,HOST,HOST',
  'postgres://ada:hunter2@HOST/app',
  'postgres+advisory://ada:hunter2@HOST/app',
  'etcd://ada:hunter2@HOST',
  'etcd://HOST',
]

test.concurrent.each(URLS)(
  '%s: a server that never answers ends in a finding within its time, without the password',
  async (url) => {
    const began = performance.now()
    const report = await diagnose(url.replaceAll('HOST', `127.0.0.1:${port}`), { timeoutMs: 300, totalMs: 1_500 })
    // The clients themselves would try for ever. How exactly the time is kept depends on the machine.
    expect(performance.now() - began).toBeLessThan(30_000)
    expect(report).toMatchObject({ reachable: false, safe: false, server: null })
    expect(report.findings).toHaveLength(1)
    expect(JSON.stringify(report)).not.toContain('hunter2')
  },
)

test.concurrent.each(URLS)('%s: a port where nobody listens is a finding without the password', async (url) => {
  const report = await diagnose(url.replaceAll('HOST', '127.0.0.1:9'), { timeoutMs: 300, totalMs: 1_500 })
  expect(report).toMatchObject({ reachable: false, safe: false })
  expect(JSON.stringify(report)).not.toContain('hunter2')
})
