import ipaddr from 'ipaddr.js'

/** The IPv6 prefix in which a NAT64 translator puts IPv4 addresses (RFC 6052). That of RFC 8215 is not covered. */
const NAT64 = ipaddr.parseCIDR('64:ff9b::/96') as [ipaddr.IPv6, number]

/**
 * The key of a client when nothing better than its address is known. A household or a
 * rented machine has a /64 of IPv6 addresses at the least, so those count as one. IPv4 addresses count by themselves, also
 * inside IPv6, and without the port that some proxies add.
 */
export function addressKey(address: string | undefined): string {
  if (address === undefined || address === '') return 'unknown'
  const plain = withoutPort(address).replace(/%.*$/, '')
  if (ipaddr.IPv4.isValidFourPartDecimal(plain)) return plain
  if (!ipaddr.IPv6.isValid(plain)) return plain
  const parsed = ipaddr.IPv6.parse(plain)
  const isIPv4 = parsed.isIPv4MappedAddress() || parsed.match(NAT64)
  if (isIPv4) return parsed.toByteArray().slice(12).join('.')
  const network = parsed.parts.slice(0, 4).map((part) => part.toString(16))
  return `${network.join(':')}::/64`
}

/** `192.0.2.1:5000` and `[2001:db8::1]:5000`; an IPv6 address without brackets has no port. */
function withoutPort(address: string): string {
  const bracketed = /^\[(.*)\](?::\d+)?$/.exec(address)
  return bracketed?.[1] ?? address.replace(/^([\d.]+):\d+$/, '$1')
}
