import { readFile } from 'node:fs/promises'
import { InvalidOptionError } from '../../errors.js'
import type { Store } from '../../store.js'
import { unknownWord } from '../../util/options.js'
import type { EtcdTls } from './connection.js'
import { createEtcd, type EtcdOptions } from './create.js'

const FORM = 'etcd://[user:password@]host:port,host:port[/prefix][?ca=file&cert=file&key=file], or etcds:// for TLS'

const UNENCODED =
  'store has an @ behind the first / or ?: in the password, / is written %2F, ? is written %3F and @ is written %40 (the URL is not shown)'

/** Files with certificates, and the name that the server's must carry. */
const PARAMETERS: readonly string[] = ['ca', 'cert', 'key', 'servername']

/** Opens `etcd://h1:2379,h2:2379` and `etcds://`. */
export async function open(url: string): Promise<Store> {
  const { hosts, options } = await parseEtcdUrl(url)
  return createEtcd(hosts, options)
}

/** What stands behind the hosts is the prefix of all keys. */
export async function parseEtcdUrl(url: string): Promise<{ hosts: string; options: EtcdOptions }> {
  const match = /^(etcds?):\/\/(?:([^/?]*)@)?([^@/?]+)(?:\/([^?]*))?(?:\?(.*))?$/s.exec(url)
  if (!match) throw new InvalidOptionError('store', url, FORM)
  const [, scheme, secret, hosts = '', path = '', query = ''] = match
  // A password with a `/` or `?` that was not encoded: its first part would be taken for a host, and shown in errors.
  if (path.includes('@') || query.includes('@')) throw new InvalidOptionError('store', undefined, FORM, UNENCODED)
  const parameters = new URLSearchParams(query)
  for (const name of parameters.keys()) {
    if (!PARAMETERS.includes(name)) throw unknownWord('option', name, PARAMETERS)
  }
  const secure = scheme === 'etcds'
  if (!secure && parameters.size > 0) throw new InvalidOptionError('store', url, 'etcds:// if certificates are given')
  const options: EtcdOptions = {
    ...(secret === undefined ? {} : { credentials: credentialsFrom(secret, url) }),
    ...(secure ? { tls: await tlsFrom(parameters) } : {}),
    ...(path === '' ? {} : { prefix: decoded(path, url) }),
  }
  return { hosts, options }
}

function credentialsFrom(secret: string, url: string): NonNullable<EtcdOptions['credentials']> {
  const colon = secret.indexOf(':')
  if (colon < 1) throw new InvalidOptionError('store', url, FORM)
  return { username: decoded(secret.slice(0, colon), url), password: decoded(secret.slice(colon + 1), url) }
}

function decoded(text: string, url: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    throw new InvalidOptionError('store', url, FORM)
  }
}

async function tlsFrom(parameters: URLSearchParams): Promise<EtcdTls> {
  const tls: EtcdTls = {}
  for (const name of ['ca', 'cert', 'key'] as const) {
    const file = parameters.get(name)
    if (file !== null) tls[name] = await readFile(file)
  }
  const servername = parameters.get('servername')
  return servername === null ? tls : { ...tls, servername }
}
