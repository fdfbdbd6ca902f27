import { InvalidOptionError } from '../errors.js'

/**
 * Which lock a wrapped function runs under. (`& {}`: the types of the arguments come from the function first, so that a
 * name may be made of the first of them only.)
 */
export type NameOf<A extends unknown[]> = string | ((...args: A & {}) => string)

/** A function that runs `fn` under the lock of that name. What goes wrong on the way there rejects, and never throws. */
export function wrap<A extends unknown[], R>(
  under: (name: string, run: () => R | Promise<R>) => Promise<R>,
  name: NameOf<A>,
  fn: (...args: A) => R | Promise<R>,
): (...args: A) => Promise<R> {
  if (typeof fn !== 'function') throw new InvalidOptionError('fn', fn, 'a function to run under the lock')
  if (typeof name !== 'string' && typeof name !== 'function') {
    throw new InvalidOptionError('name', name, 'a name, or a function of the arguments that returns one')
  }
  // A function, not an arrow: a wrapped method keeps its `this`.
  const wrapped = async function (this: unknown, ...args: A): Promise<R> {
    return under(typeof name === 'function' ? name.apply(this, args as A & {}) : name, () => fn.apply(this, args))
  }
  return Object.defineProperty(wrapped, 'name', { value: fn.name, configurable: true })
}
