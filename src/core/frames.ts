import { LeaseholdError } from '../errors.js'

const SETTLED = Promise.resolve()

/**
 * Rejects with this error. An error made by a timer has no frame of the caller that waited. V8 knows who awaits the promise that
 * is resolved with this one, so the frames are there for the asking when the wait has ended, and a wait that ends well costs
 * nothing: capturing a stack at every call instead would cost 5 µs each.
 */
export async function withFrames(error: unknown): Promise<never> {
  // Two turns: in the first the promise of the wait begins to follow this one, and before that V8 would not know who awaits it.
  await SETTLED
  await SETTLED
  if (error instanceof LeaseholdError) addFrames(error)
  throw error
}

function addFrames(error: LeaseholdError): void {
  const here: { stack?: string } = {}
  Error.captureStackTrace(here, withFrames)
  const frames = (here.stack ?? '').split('\n').slice(1)
  if (frames.length > 0) error.stack = [`${error.name}: ${error.message}`, ...frames].join('\n')
}
