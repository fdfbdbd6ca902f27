import type { AcquireOptions } from '../core/options.js'
import { InvalidOptionError } from '../errors.js'
import type { Locks } from '../locks.js'
import type { NestedOption } from './lock.js'

/** What `locked(…)` returns: a decorator of methods, standard or of TypeScript's `experimentalDecorators`. */
export interface LockedDecorator<This, N extends unknown[]> {
  <T extends This, A extends [...N, ...unknown[]], R>(
    method: (this: T, ...args: A) => Promise<R>,
    context: ClassMethodDecoratorContext<T, (this: T, ...args: A) => Promise<R>>,
  ): (this: T, ...args: A) => Promise<R>
  <A extends [...N, ...unknown[]], R>(
    target: object,
    property: string | symbol,
    descriptor: TypedPropertyDescriptor<(...args: A) => Promise<R>>,
  ): TypedPropertyDescriptor<(...args: A) => Promise<R>>
}

/**
 * A method that runs under a lock. The name may depend on the arguments and on `this`.
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
): LockedDecorator<This, N> {
  const wrapped = (method: unknown): Method => locks.wrap(name as string, method as Method, options)
  const decorate = (method: unknown, context: unknown, descriptor?: PropertyDescriptor): unknown => {
    if ((context as { kind?: unknown } | null | undefined)?.kind === 'method') return wrapped(method)
    const original: unknown = descriptor?.value
    if (typeof original !== 'function') {
      throw new InvalidOptionError('locked', descriptor ?? context, 'a method')
    }
    return { ...descriptor, value: withMetadataOf(original as Method, wrapped(original)) }
  }
  return decorate as LockedDecorator<This, N>
}

type Method = (...args: unknown[]) => Promise<unknown>

/** Frameworks of that kind of decorator (NestJS) keep what they know of a method on the function itself. */
function withMetadataOf(original: Method, wrapped: Method): Method {
  const { getOwnMetadataKeys, getOwnMetadata, defineMetadata } = Reflect as unknown as Record<
    string,
    ((...args: unknown[]) => unknown) | undefined
  >
  for (const key of (getOwnMetadataKeys?.(original) as unknown[] | undefined) ?? []) {
    defineMetadata?.(key, getOwnMetadata?.(key, original), wrapped)
  }
  return wrapped
}
