import { beforeAll, describe, expect, expectTypeOf, test } from 'vitest'
import { createLocks, locked, memory } from '../../../src/index.js'
import { startChild } from '../../../testbed/children.js'
import type { DecoratedReport } from './decorated.child.js'

describe('@locked, compiled as a standard decorator', () => {
  let report: DecoratedReport

  beforeAll(async () => {
    const child = startChild<DecoratedReport>(new URL('decorated.child.ts', import.meta.url))
    report = await child.next()
    expect(await child.ended).toBe(0)
  })

  test('a method runs under the lock of that name', () => {
    expect(report.nightly).toEqual(['nightly exclusive'])
    expect(report.free).toEqual([])
  })

  test('the name may depend on the arguments, and calls of the same name run one after the other', () => {
    expect(report.charges).toEqual(['1 10 true', '1 20 true'])
    expect(report.oneAtATime).toBe(1)
  })

  test('`this` is the instance, for the method and for the name', () => {
    expect(report.close).toEqual(['acme', '2024', 'acme:2024 exclusive'])
  })

  test('the options of withLock apply', () => {
    expect(report.read).toEqual(['page shared'])
  })

  test('a call rejects with the error of the method', () => {
    expect(report.failed).toBe(true)
  })

  test('static and private methods, and methods called through super, run under the lock', () => {
    expect(report.audit).toEqual(['north', 'static exclusive'])
    expect(report.reveal).toEqual(['private exclusive'])
    expect(report.overridden).toEqual(['overridden', 'nightly exclusive'])
  })

  test('the method stays on the prototype, under its own name', () => {
    expect(report.methodName).toBe('charge')
    expect(report.onPrototype).toBe(true)
  })

  test('anything but a method is rejected when the class is defined', () => {
    for (const said of [report.legacyField, report.onClass, report.onField]) {
      expect(said).toMatch(/^locked takes a method/)
    }
    expect(report.badName).toMatch(/^name takes a name, or a function of the arguments/)
  })
})

test('@locked works with experimentalDecorators too, and keeps the metadata that other decorators wrote on the method', async () => {
  const locks = createLocks(memory())
  const metadata = new Map<unknown, Map<unknown, unknown>>()
  // What reflect-metadata, which NestJS uses, adds to Reflect.
  const reflection = {
    defineMetadata: (key: unknown, value: unknown, on: unknown) =>
      metadata.set(on, (metadata.get(on) ?? new Map<unknown, unknown>()).set(key, value)),
    getOwnMetadata: (key: unknown, on: unknown) => metadata.get(on)?.get(key),
    getOwnMetadataKeys: (on: unknown) => [...(metadata.get(on)?.keys() ?? [])],
  }
  Object.assign(Reflect, reflection)
  class Billing {
    region = 'north'
    async charge(order: string): Promise<string[]> {
      const held = await locks.holders()
      return [this.region, order, ...held.map(({ name }) => name)]
    }
  }
  const { prototype } = Billing
  reflection.defineMetadata('path', '/charge', prototype.charge)
  const descriptor = Object.getOwnPropertyDescriptor(prototype, 'charge') as TypedPropertyDescriptor<Billing['charge']>
  const decorated = locked(locks, (order: string) => `order:${order}`)(prototype, 'charge', descriptor)
  Object.defineProperty(prototype, 'charge', decorated)
  expect(await new Billing().charge('7')).toEqual(['north', '7', 'order:7'])
  expect(reflection.getOwnMetadata('path', prototype.charge)).toBe('/charge')
  for (const name of Object.keys(reflection)) Reflect.deleteProperty(Reflect, name)
})

test('the method keeps its type, and the type of the name function follows its arguments', () => {
  const locks = createLocks(memory())
  class Account {
    id = 1
  }
  type Method = (this: Account, amount: number, reason: string) => Promise<string>
  const decorate = locked(locks, function (this: Account, amount: number) {
    return `${this.id}:${amount}`
  })
  const decorated = decorate(
    async function (this: Account, amount: number, reason: string) {
      return `${this.id} ${amount} ${reason}`
    } satisfies Method,
    { kind: 'method' } as ClassMethodDecoratorContext<Account, Method>,
  )
  expectTypeOf(decorated).toEqualTypeOf<Method>()
})
