import { InvalidOptionError } from '../errors.js'

/** 1 to 255 characters of well-formed Unicode without NUL: what every store can carry unchanged. */
export function nameFrom(option: string, name: unknown, longest = 255): string {
  if (typeof name === 'string' && name.length > 0 && name.length <= longest) {
    // Half a surrogate pair would be replaced on its way to the server, and two names would become one.
    if (name.isWellFormed() && !name.includes('\0')) return name
  }
  throw new InvalidOptionError(option, name, `1 to ${longest} characters of well-formed Unicode without NUL`)
}

/** The colon ends a namespace: with one inside, `a` + `b:c` and `a:b` + `c` would be the same lock. */
export function namespaceFrom(namespace: unknown): string {
  const name = nameFrom('namespace', namespace, 100)
  if (name.includes(':')) throw new InvalidOptionError('namespace', name, "a name without ':', which ends a namespace")
  return name
}
