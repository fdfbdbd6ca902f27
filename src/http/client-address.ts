import { isIPv6 } from 'node:net'

/**
 * Whose budget a request counts against when nothing better is known: the address of the client. A household or a
 * rented machine has a /64 of IPv6 addresses at the least, so those count as one.
 */
export function addressKey(address: string | undefined): string {
  if (address === undefined || address === '') return 'unknown'
  const mapped = /^::ffff:(\d+\.\d+\.\d+\.\d+)$/i.exec(address)
  if (mapped) return mapped[1] as string
  const plain = address.replace(/%.*$/, '')
  if (!isIPv6(plain)) return plain
  const [left = '', right] = plain.toLowerCase().split('::')
  const front = left === '' ? [] : left.split(':')
  const back = right === undefined || right === '' ? [] : right.split(':')
  // An address may end in the four numbers of an IPv4 address, which stand for two groups.
  const groups = front.length + back.length + (plain.includes('.') ? 1 : 0)
  const all = right === undefined ? front : [...front, ...Array<string>(8 - groups).fill('0'), ...back]
  const network = all.slice(0, 4).map((group) => Number.parseInt(group, 16).toString(16))
  return `${network.join(':')}::/64`
}
