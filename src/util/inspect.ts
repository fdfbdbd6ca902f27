/**
 * What `console.log` and `util.inspect` show of an object whose fields are private.
 *
 * @module
 */

/** Of Node, Deno and Bun alike. */
const INSPECT = Symbol.for('nodejs.util.inspect.custom')

/** `Lock { name: 'a', isHeld: true }` */
export function showAs<T extends object>(shown: { prototype: T }, name: string, facts: (object: T) => object): void {
  Object.defineProperty(shown.prototype, INSPECT, {
    value(this: T, _depth: number, options: object, inspect?: (value: unknown, options: object) => string): string {
      return `${name} ${inspect ? inspect(facts(this), options) : JSON.stringify(facts(this))}`
    },
  })
}
