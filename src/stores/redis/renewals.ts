/**
 * Renewals as renew.lua wants them, and what it answers.
 *
 * @module
 */
import { type RedisReply, text } from '../../clients/redis/adapter.js'
import type { Renewal, Renewed } from '../../store.js'
import { answersOf, entryOf, failureOf, isYesForAll, wholeMs } from './codec.js'

/** What is said once for all: nothing, the ttl of leases, or the ttl of queue entries. */
export type RenewalForm = 'mixed' | 'leases' | 'entries'

/** Most leases of a heartbeat want the same ttl, and all queue entries do. */
export function formOf(renewals: readonly Renewal[]): RenewalForm {
  const first = renewals[0] as Renewal
  for (let i = 0; i < renewals.length; i++) {
    const { ttlMs, value, queued } = renewals[i] as Renewal
    if (ttlMs !== first.ttlMs || value !== undefined || queued !== first.queued) return 'mixed'
  }
  return first.queued ? 'entries' : 'leases'
}

/** The arguments of renew.lua, which says how. */
export function termsOfRenewals(renewals: readonly Renewal[], form: RenewalForm): string[] {
  const ttl = String(wholeMs((renewals[0] as Renewal).ttlMs))
  const args = [form === 'mixed' ? '' : form === 'entries' ? `?${ttl}` : ttl]
  for (const { owner, token, ttlMs, value, queued } of renewals) {
    args.push(form === 'entries' ? owner : entryOf(owner, token))
    if (form === 'mixed') args.push(String(wholeMs(ttlMs)), queued ? '?' : value === undefined ? '' : `=${value}`)
  }
  return args
}

/** The answers of renew.lua to these renewals. `heard`: what the server's clock said, in microseconds. */
export function answersToRenewals(
  reply: RedisReply,
  renewals: readonly Renewal[],
  form: RenewalForm,
  heard: (micros: number) => void,
): Renewed[] {
  const { length } = renewals
  if (form === 'entries') return answersToEntries(reply as RedisReply[], length, heard)
  const all = isYesForAll(reply, length)
  const replies = all ? [] : answersOf(reply, length)
  // Nearly all leases of a heartbeat have one ttl, and so one answer.
  let ours: Extract<Renewed, { outcome: 'ours' }> = { outcome: 'ours', ttlMs: 0 }
  return renewals.map(({ ttlMs }, i) => {
    const answer = all ? 1 : replies[i]
    if (answer !== 1) return renewedOf(answer, wholeMs(ttlMs), heard)
    const whole = wholeMs(ttlMs)
    if (ours.ttlMs !== whole) ours = { outcome: 'ours', ttlMs: whole }
    return ours
  })
}

/** The same for so many queue entries: most of them are the first, and answered by when the lease in their way ends. */
function answersToEntries(replies: readonly RedisReply[], count: number, heard: (micros: number) => void): Renewed[] {
  const newest = BigInt(text(replies[count]))
  heard(Number(text(replies[count + 1])))
  const answers: Renewed[] = []
  for (let i = 0; i < count; i++) {
    const reply = replies[i]
    if (Array.isArray(reply)) answers.push(renewedOf(reply, 0, heard))
    else answers.push(entryRenewed(reply, newest))
  }
  return answers
}

function entryRenewed(reply: RedisReply, newest: bigint): Renewed {
  const error = failureOf(reply)
  if (error) return { outcome: 'unknown', error }
  const ms = Number(reply)
  if (ms < -1) return { outcome: 'gone' }
  return { outcome: 'waiting', newest, ahead: 0, blockedMs: ms < 0 ? undefined : ms }
}

function renewedOf(reply: RedisReply, ttlMs: number, heard: (micros: number) => void): Renewed {
  if (Array.isArray(reply)) {
    const [kind, token, now, ms] = reply as RedisReply[]
    heard(Number(now))
    if (Number(kind) === 2) return { outcome: 'granted', token: BigInt(text(token)), ttlMs: Math.max(Number(ms), 0) }
    const waiting = { outcome: 'waiting', newest: BigInt(text(token)) } as const
    if (reply.length === 3) return { ...waiting, ahead: 1 }
    return ms === null || Number(ms) < 0 ? { ...waiting, ahead: 0 } : { ...waiting, ahead: 0, blockedMs: Number(ms) }
  }
  const error = failureOf(reply)
  if (error) return { outcome: 'unknown', error }
  return Number(reply) === 1 ? { outcome: 'ours', ttlMs } : { outcome: 'gone' }
}
