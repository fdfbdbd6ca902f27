import type { AcquireOptions } from '../core/options.js'
import { InvalidOptionError } from '../errors.js'
import type { Locks } from '../locks.js'
import type { NestedOption } from './lock.js'

/**
 * A method that runs under a lock (a standard decorator). The name may depend on the arguments and on `this`.
 *
 * @example
 * ```ts
 * class Billing {
 *   \@locked(locks, (order: string) => `order:${order}`)
 *   async charge(order: string) {}
 * }
 * ```
 */
export function locked<This, N extends unknown[]>(
  locks: Locks,
  name: string | ((this: This, ...args: N) => string),
  options?: AcquireOptions & NestedOption,
): <T extends This, A extends [...N, ...unknown[]], R>(
  method: (this: T, ...args: A) => Promise<R>,
  context: ClassMethodDecoratorContext<T, (this: T, ...args: A) => Promise<R>>,
) => (this: T, ...args: A) => Promise<R> {
  return <T extends This, A extends [...N, ...unknown[]], R>(
    method: (this: T, ...args: A) => Promise<R>,
    context: ClassMethodDecoratorContext<T, (this: T, ...args: A) => Promise<R>>,
  ) => {
    if ((context as { kind?: unknown } | undefined)?.kind !== 'method') {
      throw new InvalidOptionError(
        'locked',
        context,
        'a method, as a standard decorator (TypeScript without experimentalDecorators)',
      )
    }
    return locks.wrap(name as string | ((...args: A) => string), method as (...args: A) => Promise<R>, options)
  }
}
