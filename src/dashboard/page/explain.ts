// What the facts mean, in sentences.
import type { Hello, HolderRow, LossView, Origin } from '../protocol.js'
import { count, duration, figure, holderParts, shortHolder } from './format.js'

export const STATES = {
  alive: { icon: '●', word: 'alive' },
  'at-risk': { icon: '△', word: 'at risk' },
  silent: { icon: '◐', word: 'silent' },
  gone: { icon: '✕', word: 'gone' },
  unknown: { icon: '○', word: 'not known' },
} as const

/** How we know whether this holder is alive. */
export function healthReasons(row: HolderRow, now: number): string[] {
  const { state, renewedAt, publishedAt, process, session } = row.health
  const { pid } = holderParts(row.holder)
  const reasons: string[] = []
  if (row.foreign) reasons.push('It was taken by another program, whose renewals and process are not known here.')
  if (renewedAt !== undefined)
    reasons.push(`Its lease was renewed ${duration(now - renewedAt)} ago, as seen in the store.`)
  else if (!row.foreign && row.ends !== undefined && state !== 'gone') {
    const isNew = row.since !== undefined && now - row.since < (row.ttlMs ?? 0) / 2
    reasons.push(
      isNew
        ? 'It has just acquired it; the first renewal is not due yet.'
        : 'No renewal was seen since this dashboard began to watch.',
    )
  }
  if (publishedAt !== undefined) reasons.push('Its process publishes its figures.')
  if (process === 'running') reasons.push(`Process ${pid} runs on this host.`)
  if (process === 'missing') reasons.push(`There is no process ${pid} on this host any more.`)
  if (session) reasons.push('Its session with the database is open.')
  if (state === 'at-risk') {
    reasons.push(
      'Its process says that its renewals fail: it is lost when its time has passed, unless one works before.',
    )
  }
  if (state === 'silent') {
    reasons.push(
      'It should have renewed by now. It hangs, is cut off, or took the lock without renewals (autoRenew: false).',
    )
  }
  return reasons
}

/** When it ends without anybody's doing. */
export function endSentence(row: HolderRow, now: number, hello: Hello): string {
  if (row.ends === undefined) {
    return hello.expiry === 'session' ? 'Ends when its database session ends.' : 'Does not end by itself.'
  }
  const left = row.ends - now
  if (left <= 0) return 'Its time has passed: it ends with the next request for it.'
  const isKept = row.health.state === 'alive'
  return `Ends by itself in ${duration(left)}${isKept ? ' unless it is renewed again, as it has been' : ', if nothing renews it'}.`
}

/** What pressing release would do to these holders of one name. */
export function releaseConsequences(
  rows: readonly HolderRow[],
  waiters: readonly string[] | undefined,
  hello: Hello,
): string[] {
  const [first] = rows
  if (!first) return []
  const who = rows.length === 1 ? shortHolder(first.holder) : count(rows.length, 'holder')
  const foreign = rows.filter((row) => row.foreign).length
  const said: string[] = []
  if (hello.expiry === 'session' && foreign > 0) {
    return [`Nothing: ${who} has a session of its own with the database, which only an administrator can end.`]
  }
  if (foreign === rows.length) said.push(`Ends the lock of ${who}, a program that is not told and goes on.`)
  else if (hello.expiry === 'session')
    said.push(`Asks the process of ${who} to end it, which works only if that process answers.`)
  else
    said.push(
      `Takes it away from ${who} at once. Work under it is told (signal, LockLostError), but may run on for a moment.`,
    )
  const [next] = waiters ?? []
  if (next !== undefined)
    said.push(`${shortHolder(next)}, the first of ${count(waiters?.length ?? 1, 'waiter')}, gets it right away.`)
  else if (first.waiting > 0) said.push(`The first of ${count(first.waiting, 'waiter')} gets it right away.`)
  else said.push('Nobody waits for it: it is free afterwards.')
  if (first.kind === 'election') said.push('The leader is deposed, and the next one begins a higher term.')
  if (first.kind === 'semaphore') said.push('All permits of this name are taken back, not only one.')
  if (first.health.state === 'alive') said.push('The holder is alive: it may be in the middle of something.')
  if (first.token !== undefined)
    said.push('What the old holder still writes is stopped only where its fencing token is checked.')
  return said
}

/** Why a lock was lost, in words. Processes of later versions may give reasons that are not listed here. */
const WHY: Record<string, string> = {
  expired: 'its time passed without a renewal that worked',
  gone: 'the store no longer had it',
  revoked: 'it was taken away by force',
  session: 'its connection broke',
  'max-hold': 'it was held for as long as maxHold allows',
  released: 'it was released behind the back of the work under it',
  blocked: 'the event loop of its process was blocked',
  frozen: 'its process was frozen',
  unreachable: 'the store could not be reached',
  'server-down': 'the server of the store was down',
}

export function lossReason({ what, why, message }: LossView): string {
  if (what === 'ran-out') return 'ran out: nobody renewed it'
  if (why === undefined) return what === 'forced' ? 'released with this dashboard' : 'not known'
  const [, detail] = /^".*" is no longer held: (.*)$/s.exec(message ?? '') ?? []
  return detail ?? WHY[why] ?? why
}

/** What became of an attempt to renew. Processes of later versions may give outcomes that are not listed here. */
const OUTCOMES: Record<string, string> = {
  renewed: 'renewed',
  gone: 'refused: the store no longer had it',
  failed: 'failed',
  unanswered: 'not answered yet',
}

/** What is known of the time before a lock was lost, in sentences; empty if its process tells nothing. */
export function lossFacts({ at, stalledMs, lastRenewedMsAgo, attempts = [] }: LossView): string[] {
  const said: string[] = []
  if (lastRenewedMsAgo !== undefined)
    said.push(`The last good renewal, or the grant, was ${figure(lastRenewedMsAgo)} before.`)
  if (stalledMs !== undefined) {
    said.push(
      stalledMs === 0
        ? 'The event loop of its process was not seen to stand still.'
        : `The event loop of its process stood still for ${figure(stalledMs)}.`,
    )
  }
  for (const { at: sentAt, outcome, tookMs, error } of attempts) {
    const result = `${OUTCOMES[outcome] ?? outcome}${error === undefined ? '' : `: ${error}`}`
    said.push(`Renewal sent ${figure(Math.max(at - sentAt, 0))} before: ${result} (after ${figure(tookMs)}).`)
  }
  return said
}

export const LOSS_MARKS = {
  lost: { icon: '✕', word: 'lost' },
  forced: { icon: '▲', word: 'forced' },
  'ran-out': { icon: '○', word: 'ran out' },
} as const

export function originText(origin: Origin, publishing: number): string {
  if (origin === 'processes') return publishing === 1 ? 'told by the process' : `told by ${publishing} processes`
  return origin === 'store' ? 'seen in the store' : 'done here'
}
