/** Waits for a promise that never rejects, but not longer than this. */
export async function within(ms: number, promise: Promise<void>): Promise<void> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<void>((resolve) => {
    timer = setTimeout(resolve, ms)
    timer.unref()
  })
  await Promise.race([promise, late])
  clearTimeout(timer)
}
