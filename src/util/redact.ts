/**
 * What may be shown of a value in an error, a log or JSON: never a password.
 *
 * @module
 */

/** Longer texts are cut: an error message must not run for pages. */
const LONGEST_SHOWN = 60

/** Options and URL parameters whose value is never shown. */
const SECRET_NAME = /pass(word|phrase|wd)?$|^pwd$|secret|credential|^auth|api_?key|private_?key|access_?token/i

/** Properties in which client libraries keep what they sent or were given: ioredis the arguments of AUTH, `URL` its input. */
const SECRET_PROPERTIES: readonly string[] = ['command', 'input', 'connectionString', 'config', 'options']

/** A URL and nothing else; those of stores also where the slashes were forgotten. */
const WHOLE_URL = /^([a-z][a-z0-9+.-]{0,30}:(?=\/\/)|(?:rediss?|redlock|postgres(?:ql)?|etcds?)(?:\+[a-z]+)?:)([^]*)$/i

/** Whether the value of an option with this name must not be shown. */
export function isSecretName(name: string): boolean {
  return SECRET_NAME.test(name)
}

/**
 * A text without the user and password of any URL in it. A password may contain `@`, `/` and `?`, so everything up to the
 * last `@` goes.
 */
export function redact(text: string): string {
  // A URL and nothing else: its password may contain a space, too.
  const [scheme] = /^[a-z][a-z0-9+.-]{0,30}:\/\//i.exec(text) ?? []
  const user = text.slice(0, Math.max(text.lastIndexOf('@'), 0))
  if (scheme && /\s/.test(user) && !user.includes('\n'))
    return withoutSecrets(scheme.slice(0, -2), text.slice(scheme.length - 2))
  // Each scheme is short and begins at a boundary, or a long text without any would be searched from every character.
  return text.replace(/(?<![a-z0-9+.-])([a-z][a-z0-9+.-]{0,30}:)(\S*)/gi, (all, scheme: string, rest: string) => {
    // Paths of modules contain an @ too, and so does what our own messages say that a URL looks like.
    if (/^(file|node|data):$/i.test(scheme) || isTemplate(rest)) return all
    return rest.includes('@') || rest.startsWith('//') ? withoutSecrets(scheme, rest) : all
  })
}

/** Exactly this text with nothing secret behind it: a password could look like brackets. */
function isTemplate(rest: string): boolean {
  return rest.startsWith('//[user:password@]') && rest.indexOf('@') === rest.lastIndexOf('@')
}

/**
 * Everything behind a secret parameter goes with it: a password that was not encoded may contain `&`, `#` and `@`. If the only `@`
 * is behind it, it is not known which of the two contains the other: nothing but the scheme is shown.
 */
function withoutSecrets(scheme: string, rest: string): string {
  const parameter = [...rest.matchAll(/[?&]([^?=&#\s]+)=/g)].find(([, name = '']) => isSecretName(name))
  const head = parameter ? rest.slice(0, parameter.index) : rest
  const tail = parameter ? `${parameter[0]}…` : ''
  const at = head.lastIndexOf('@')
  if (at !== -1) return `${scheme}//…@${head.slice(at + 1)}${tail}`
  return parameter && rest.includes('@') ? `${scheme}//…` : `${scheme}${head}${tail}`
}

/** One line for an error message. Objects are named and never printed: a client carries its password. */
export function describe(value: unknown): string {
  if (typeof value === 'string') return describeText(value)
  if (typeof value === 'function') return 'a function'
  if (Array.isArray(value)) return describeList(value)
  if (typeof value === 'object' && value !== null) return describeObject(value)
  return typeof value === 'bigint' ? `${value}n` : String(value)
}

/** What an error may carry as the value of an option: plain numbers and flags as they are, the rest as a description. */
export function safeValue(option: string, value: unknown): unknown {
  if (isSecretName(option)) return '…'
  if (typeof value === 'string') return redactText(value)
  if (value === null || (typeof value !== 'object' && typeof value !== 'function')) return value
  return describe(value)
}

function describeText(text: string): string {
  const safe = redactText(text)
  if (safe.length <= LONGEST_SHOWN) return JSON.stringify(safe)
  return `${JSON.stringify(`${safe.slice(0, LONGEST_SHOWN)}…`)} (${text.length} characters)`
}

/** `user:password@host` without a scheme, and `key=value` connection strings, are secrets too. */
function redactText(text: string): string {
  // A value that is a URL as a whole: its password may contain blanks and line breaks, which end a URL in a text, and the slashes
  // by which one is known in a text may be missing.
  const [, scheme, rest = ''] = WHOLE_URL.exec(text) ?? []
  const safe = scheme && (/\s/.test(text) || !rest.startsWith('//')) ? withoutSecrets(scheme, rest) : redact(text)
  if (safe !== text) return safe
  if (scheme) return withoutOddPort(scheme, rest)
  const at = text.lastIndexOf('@')
  const before = text.slice(0, Math.max(at, 0))
  if (before.includes(':') && !/\s/.test(before)) return `…@${text.slice(at + 1)}`
  return text.replace(/\b(\w+)=('[^']*'|[^\s&;]*)/g, (all, name: string) => (isSecretName(name) ? `${name}=…` : all))
}

/** Without an `@`, what stands in place of a port may be a password whose host was forgotten: `redis://user:password`. */
function withoutOddPort(scheme: string, rest: string): string {
  const [authority = ''] = /^\/*[^/?#]*/.exec(rest) ?? []
  // Not the colons of an IPv6 address, which has brackets around it.
  const odd = authority.search(/(?<!\[[^\]]*):(?!\d{1,5}(?:,|$))/)
  return odd === -1 ? scheme + rest : `${scheme}${rest.slice(0, odd)}:…`
}

function describeList(items: readonly unknown[]): string {
  const plain = items.every((item) => typeof item === 'string' || typeof item === 'number')
  if (plain && items.length <= 5) return `[${items.map(describe).join(', ')}]`
  return `a list of ${items.length} items`
}

function describeObject(value: object): string {
  let name: unknown
  let keys: string[] = []
  try {
    name = value.constructor?.name
    keys = Object.keys(value)
  } catch {
    // A proxy or a getter that throws: it is an object, and nothing more is known of it.
  }
  if (typeof name === 'string' && name !== '' && name !== 'Object') return `an object of class ${name}`
  if (keys.length === 0) return 'an object'
  const shown = keys.slice(0, 6).map((key) => redact(key))
  return `an object with ${shown.join(', ')}${keys.length > shown.length ? ', …' : ''}`
}

/** How deep errors inside errors are looked at. Deeper ones are left out. */
const DEEPEST = 6

/**
 * An error from another library, made fit to be a `cause`: itself if it carries nothing but a message, plain facts and errors of
 * that kind, else a copy with only those. Clients put what they sent on their errors: ioredis the arguments of AUTH, and
 * its cluster client that error on another one.
 */
export function safeCause(cause: unknown, depth = 0): unknown {
  if (typeof cause === 'string') return redact(cause)
  if (typeof cause !== 'object' || cause === null) return cause
  if (depth >= DEEPEST) return new Error('…')
  const { message = '' } = cause as { message?: unknown }
  const facts = new Map<string, unknown>()
  // Not instanceof: under Jest, errors of Node itself come from another realm.
  let clean = isError(cause) && redact(String(message)) === String(message)
  for (const name of Object.getOwnPropertyNames(cause)) {
    if (name === 'message' || name === 'stack') continue
    const value = (cause as Record<string, unknown>)[name]
    const fact = safeFact(name, value, depth)
    if (fact !== value) clean = false
    if (fact !== undefined) facts.set(name, fact)
  }
  return clean ? cause : copyOf(cause, facts)
}

/** Undefined: not to be shown. */
function safeFact(name: string, value: unknown, depth: number): unknown {
  if (SECRET_PROPERTIES.includes(name) || isSecretName(name)) return undefined
  if (typeof value === 'string') return redact(value)
  if (typeof value !== 'object' || value === null) return typeof value === 'function' ? undefined : value
  if (isError(value)) return safeCause(value, depth + 1)
  if (!Array.isArray(value)) return undefined
  const items = value.map((item) => safeFact('', item, depth))
  return items.every((item, i) => item === value[i]) ? value : items.filter((item) => item !== undefined)
}

function copyOf(cause: object, facts: ReadonlyMap<string, unknown>): Error {
  const { message = '', name = 'Error', stack } = cause as { message?: unknown; name?: unknown; stack?: unknown }
  const copy = new Error(redact(String(message)))
  // Only the message in it: a frame such as node_modules/@scope/file.js is no secret.
  if (typeof stack === 'string') copy.stack = stack.replace(String(message), () => copy.message)
  for (const [property, value] of facts) {
    const enumerable = property !== 'cause' && property !== 'errors'
    Object.defineProperty(copy, property, { value, enumerable, configurable: true, writable: true })
  }
  Object.defineProperty(copy, 'name', { value: String(name), configurable: true, writable: true })
  return copy
}

function isError(value: object): boolean {
  return value instanceof Error || Object.prototype.toString.call(value) === '[object Error]'
}
