/** Certificates for servers with TLS. */
import { execFile } from 'node:child_process'
import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'

const run = promisify(execFile)

export interface Certificates {
  /** PEM of the temporary authority that clients must trust. */
  ca: string
  caFile: string
  certFile: string
  keyFile: string
  cert: string
  key: string
}

/** Makes an authority and a certificate for 127.0.0.1 and localhost, for servers and clients, valid for two days. */
export async function makeCertificates(dir: string): Promise<Certificates> {
  const file = (name: string) => join(dir, name)
  const openssl = (...args: string[]) => run('openssl', args, { cwd: dir })
  const newKey = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes']
  await openssl(
    'req',
    '-x509',
    ...newKey,
    '-keyout',
    'ca.key',
    '-out',
    'ca.crt',
    '-days',
    '2',
    '-subj',
    '/CN=leasehold test authority',
  )
  await openssl('req', ...newKey, '-keyout', 'server.key', '-out', 'server.csr', '-subj', '/CN=localhost')
  await writeFile(
    file('server.ext'),
    'subjectAltName=IP:127.0.0.1,DNS:localhost\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth,clientAuth\n',
  )
  const signing = ['-CA', 'ca.crt', '-CAkey', 'ca.key', '-CAcreateserial', '-extfile', 'server.ext', '-days', '2']
  await openssl('x509', '-req', '-in', 'server.csr', '-out', 'server.crt', ...signing)
  const read = (name: string) => readFile(file(name), 'utf8')
  return {
    ca: await read('ca.crt'),
    cert: await read('server.crt'),
    key: await read('server.key'),
    caFile: file('ca.crt'),
    certFile: file('server.crt'),
    keyFile: file('server.key'),
  }
}
