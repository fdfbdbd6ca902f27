/** The description of a problem for a client whose request is not served: `application/problem+json` (RFC 9457). */
export interface Problem {
  status: number
  title: string
  detail: string
  headers: Record<string, string>
}

export const PROBLEM_TYPE = 'application/problem+json'

export function problemBody({ status, title, detail }: Problem): string {
  return JSON.stringify({ type: 'about:blank', title, status, detail })
}

/** Whole seconds, at least one: a client that tries sooner is only refused again. */
export function retryAfter(ms: number): string {
  return String(Math.max(Math.ceil(ms / 1_000), 1))
}
