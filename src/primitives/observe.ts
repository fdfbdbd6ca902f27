import type { Engine } from '../core/engine.js'
import type { LeaderInfo } from './election.js'

/** Looks again this often where a bell may have been missed. */
const LOOK_AGAIN_MS = 1_000
/** Where the store rings no bells at all. */
const POLL_MS = 250

/** Yields each new leader or value, as soon as it can be seen. Ends when the signal aborts or the instance closes. */
export async function* observe(
  engine: Engine,
  key: string,
  look: () => Promise<LeaderInfo | null>,
  signal: AbortSignal | undefined,
): AsyncIterableIterator<LeaderInfo> {
  let wake: (() => void) | undefined
  let rung = false
  const ring = (): void => {
    rung = true
    wake?.()
  }
  const bell = engine.bells.listen(key, ring)
  signal?.addEventListener('abort', ring)
  let last: LeaderInfo | undefined
  try {
    await bell?.ready
    while (!signal?.aborted && !engine.closingReason) {
      // Before looking: what happens while we look must make us look again.
      rung = false
      const now = await look().catch(() => null)
      if (now && isNews(now, last)) {
        last = now
        yield now
      }
      if (rung) continue
      await new Promise<void>((resolve) => {
        const cancel = engine.world.after(bell?.live() ? LOOK_AGAIN_MS : POLL_MS, resolve, true)
        wake = () => (cancel(), resolve())
        if (rung) wake()
      })
      wake = undefined
    }
  } finally {
    signal?.removeEventListener('abort', ring)
    bell?.remove(ring, engine.world.now())
  }
}

/** An answer that was overtaken on its way tells of an older term: terms are seen in order. */
function isNews(now: LeaderInfo, last: LeaderInfo | undefined): boolean {
  if (!last || now.term > last.term) return true
  return now.term === last.term && JSON.stringify(now.value) !== JSON.stringify(last.value)
}
