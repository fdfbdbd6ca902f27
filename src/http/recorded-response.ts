/** The record of a response, and its replay. */

/** Status, headers and the status text of a response. */
export interface ResponseHead {
  status: number
  /** Empty: the usual one. */
  message: string
  headers: [name: string, value: string][]
}

/** The response of a handler, as it is recorded. */
export interface CapturedResponse extends ResponseHead {
  /** Absent: larger than `maxBytes`, so that only the status is recorded. */
  body: Uint8Array | undefined
}

/** A complete response. */
export interface WholeResponse extends ResponseHead {
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

/**
 * The largest record in bytes of JSON: 1 MB of body as base64, and headers. Below what `runOnce` (1,572,864) and etcd
 * (1,560,000) refuse as too large: a refused record would let a served request run again.
 */
const MAX_RECORD_BYTES = 1_500_000

/** Headers of one connection or one moment; and a cookie that opens a session does not belong into a lock store. */
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
  return Buffer.byteLength(JSON.stringify(whole)) <= MAX_RECORD_BYTES ? whole : withoutBody(record)
}

/** The headers are dropped too: a record that the store refuses as too large would let a served request run again. */
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
