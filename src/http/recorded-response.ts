/** What is kept of a response, and how it is given back. */

/** Status, headers and the status text of a response. */
export interface Head {
  status: number
  /** Empty: the usual one. */
  message: string
  headers: [name: string, value: string][]
}

/** A response as far as it can be recorded. */
export interface CapturedResponse extends Head {
  /** Absent: larger than `maxBytes`, so that only the status is recorded. */
  body: Uint8Array | undefined
}

/** A response that can be sent. */
export interface WholeResponse extends Head {
  body: Uint8Array
}

/** The JSON that is recorded under a key. */
export interface RecordedResponse {
  fingerprint: string
  status: number
  message?: string
  headers: [string, string][]
  /** Absent: too large to be recorded. */
  body?: string
  encoding?: 'utf8' | 'base64'
}

const REPLAYED = 'Idempotent-Replayed'

/** A record of run-once takes this much JSON: 1 MB of bytes as base64, and headers. */
const LARGEST_RECORD = 1_500_000

/** Belong to one connection or one moment; and a cookie that opens a session does not belong into a lock store. */
const NOT_REPLAYED = new Set([
  'connection',
  'content-length',
  'date',
  'keep-alive',
  'set-cookie',
  'trailer',
  'transfer-encoding',
  'ratelimit',
  'ratelimit-policy',
])

export function recordOf({ status, message, headers, body }: CapturedResponse, fingerprint: string): RecordedResponse {
  const kept = headers.filter(([name]) => !NOT_REPLAYED.has(name.toLowerCase()))
  const record: RecordedResponse = { fingerprint, status, ...(message === '' ? {} : { message }), headers: kept }
  if (body === undefined) return withoutBody(record)
  const whole = { ...record, ...encode(body) }
  return Buffer.byteLength(JSON.stringify(whole)) <= LARGEST_RECORD ? whole : withoutBody(record)
}

/** Headers count too: a record that the store refuses would let a served request run again. */
function withoutBody(record: RecordedResponse): RecordedResponse {
  return { ...record, headers: [] }
}

function encode(body: Uint8Array): { body: string; encoding: 'utf8' | 'base64' } {
  const buffer = Buffer.from(body.buffer, body.byteOffset, body.byteLength)
  const text = buffer.toString('utf8')
  // Escapes can make JSON of many control characters six times as large.
  const short = Buffer.byteLength(JSON.stringify(text)) <= buffer.length * 1.4 + 100
  const encoding = short && Buffer.from(text, 'utf8').equals(buffer) ? 'utf8' : 'base64'
  return { body: encoding === 'utf8' ? text : buffer.toString('base64'), encoding }
}

/** Undefined: the response was too large to be recorded. */
export function replayOf({ status, message, headers, body, encoding }: RecordedResponse): WholeResponse | undefined {
  if (body === undefined) return undefined
  const all: [string, string][] = [...headers, [REPLAYED, 'true']]
  return { status, message: message ?? '', headers: all, body: Buffer.from(body, encoding) }
}

/** Headers by name, with several values as a list, as `setHeader` takes them. */
export function groupHeaders(headers: readonly [string, string][]): Map<string, string | string[]> {
  const grouped = new Map<string, string | string[]>()
  const spelled = new Map<string, string>()
  for (const [name, value] of headers) {
    const first = spelled.get(name.toLowerCase())
    if (first === undefined) {
      spelled.set(name.toLowerCase(), name)
      grouped.set(name, value)
    } else grouped.set(first, [grouped.get(first) as string | string[], value].flat())
  }
  return grouped
}
