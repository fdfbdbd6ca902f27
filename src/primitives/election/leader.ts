import type { Engine } from '../../core/engine.js'

/** The leader of an election. */
export interface LeaderInfo {
  leader: string
  term: bigint
  value: unknown
}

export async function currentLeader(engine: Engine, key: string): Promise<LeaderInfo | null> {
  const { holders } = await engine.read('election', (store) => store.inspect?.(key))
  let latest: LeaderInfo | null = null
  // Servers that vote may list a holder of an earlier term beside the leader, and a candidate before its term began.
  for (const { owner, token, value } of holders) {
    if (token !== undefined && token > (latest?.term ?? -1n))
      latest = { leader: owner, term: token, value: parsed(value) }
  }
  return latest
}

/** Other writers may have put anything there. */
function parsed(value: string | undefined): unknown {
  if (value === undefined) return null
  try {
    return JSON.parse(value)
  } catch {
    return value
  }
}
