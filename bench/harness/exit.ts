// Clean-up that also happens on Ctrl-C, SIGTERM and failures. It has to be synchronous: nothing else runs in an exit.
const pending = new Set<() => void>()
let watching = false

function watch(): void {
  if (watching) return
  watching = true
  process.on('exit', () => {
    for (const cleanUp of pending) cleanUp()
  })
  for (const [signal, code] of [
    ['SIGINT', 130],
    ['SIGTERM', 143],
    ['SIGHUP', 129],
  ] as const)
    process.on(signal, () => process.exit(code))
}

/** Runs `cleanUp` once: when the result is called, or when this process ends. */
export function atExit(cleanUp: () => void): () => void {
  watch()
  pending.add(cleanUp)
  return () => {
    if (pending.delete(cleanUp)) cleanUp()
  }
}
