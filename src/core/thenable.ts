/** Database clients return promises of their own make: whatever has a `then` is one. */
export function isThenable<T>(value: T | PromiseLike<T>): value is PromiseLike<T> {
  return value instanceof Promise || typeof (value as { then?: unknown } | undefined | null)?.then === 'function'
}

/** A rejection that nobody looks at would end the process. */
export function ignoreRejection(value: unknown): void {
  if (isThenable(value)) value.then(undefined, () => {})
}
