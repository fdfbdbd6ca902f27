/**
 * The expected holders at any moment, as simply as possible: a list of holders and a queue, first come first served.
 * Random commands are given to the model and to the real primitive, which must agree after each of them.
 */
import { strict as assert } from 'node:assert'
import fc from 'fast-check'
import { ALL, type Store } from '../../../src/store.js'
import {
  type AcquireSubject,
  type SubjectKind,
  EXPIRING_TTL,
  type SubjectAcquisition,
  openSubject,
  type AcquireWish,
} from './subjects.js'
import { VirtualWorld } from '../../../testbed/virtual-world.js'

/** A_LIFETIME: after this time every lease that is not renewed has expired, and its waiters have noticed. */
const A_LIFETIME = EXPIRING_TTL + 4_000

interface ModelCaller extends AcquireWish {
  id: number
}

class Model {
  holders: ModelCaller[] = []
  queue: ModelCaller[] = []
  readonly capacity: number

  constructor(capacity: number) {
    this.capacity = capacity
  }

  fits({ weight }: ModelCaller): boolean {
    return this.holders.reduce((sum, caller) => sum + caller.weight, weight) <= this.capacity
  }

  /** Returns true if it holds or is queued. */
  ask(caller: ModelCaller): boolean {
    if (caller.steal) this.holders = []
    if (caller.steal || (this.queue.length === 0 && this.fits(caller))) this.holders.push(caller)
    else if (caller.once) return false
    else this.queue.push(caller)
    return true
  }

  leave(id: number): void {
    this.holders = this.holders.filter((caller) => caller.id !== id)
    this.queue = this.queue.filter((caller) => caller.id !== id)
    this.serve()
  }

  /** Removes the holders whose leases are not renewed. */
  outlive(): void {
    this.holders = this.holders.filter(({ expires }) => !expires)
    this.serve()
  }

  serve(): void {
    for (let head = this.queue[0]; head && this.fits(head); head = this.queue[0]) {
      this.queue.shift()
      this.holders.push(head)
    }
  }
}

/** The real primitive. */
interface Real {
  world: VirtualWorld
  store: Store
  subject: AcquireSubject
  callers: SubjectAcquisition[]
}

const byNumber = (a: number, b: number): number => a - b

async function agree({ holders, queue, capacity }: Model, { world, store, subject, callers }: Real): Promise<void> {
  await world.settle()
  const really = callers
    .filter((acquisition) => acquisition.holds() && acquisition.over === undefined)
    .map(({ id }) => id)
  assert.deepEqual(really.sort(byNumber), holders.map(({ id }) => id).sort(byNumber), 'the holders')
  const waiting = callers
    .filter((acquisition) => !acquisition.hasHeld && acquisition.over === undefined)
    .map(({ id }) => id)
  assert.deepEqual(waiting.sort(byNumber), queue.map(({ id }) => id).sort(byNumber), 'the waiters')
  const seen = await store.inspect?.(subject.key)
  const weights = seen?.holders.map(({ weight }) => weight) ?? []
  assert.deepEqual(weights.sort(byNumber), holders.map(({ weight }) => weight).sort(byNumber), 'what the store holds')
  assert.ok(weights.reduce((sum, weight) => sum + weight, 0) <= capacity, `${weights} of ${capacity}`)
}

type Step = fc.AsyncCommand<Model, Real>

function step(name: string, check: (model: Model) => boolean, run: (model: Model, real: Real) => Promise<void>): Step {
  return {
    check,
    async run(model, real) {
      await run(model, real)
      await agree(model, real)
    },
    toString: () => name,
  }
}

const ask = (which: number, over: Partial<AcquireWish>): Step =>
  step(
    `ask(${which}${Object.keys(over).map((key) => `, ${key}`)})`,
    () => true,
    async (model, real) => {
      const { subject, callers, world } = real
      const weight = over.steal && subject.steals ? ALL : (subject.weights[which % subject.weights.length] as number)
      // A request is always renewed, and only a request can steal.
      const wish: AcquireWish = {
        weight,
        once: over.once === true,
        expires: over.expires === true && !subject.steals,
        steal: over.steal === true && subject.steals,
      }
      const id = callers.length
      const acquisition = subject.ask(id, wish)
      callers.push(acquisition)
      const had = model.holders.map((caller) => caller.id)
      const accepted = model.ask({ ...wish, id })
      await world.settle()
      if (!accepted) assert.match(String(acquisition.over), /refused|LockTimeoutError/, `${id} is refused at once`)
      if (wish.steal) for (const stolen of had) assert.equal(callers[stolen]?.over, 'AbortError', `${stolen} is stolen`)
    },
  )

const release = (which: number): Step =>
  step(
    `release(${which})`,
    (model) => model.holders.length > 0,
    async (model, { callers }) => {
      const { id } = model.holders[which % model.holders.length] as ModelCaller
      model.leave(id)
      const acquisition = callers[id] as SubjectAcquisition
      await acquisition.release()
      assert.equal(acquisition.over, 'released', `${id} held it until its release`)
    },
  )

const cancel = (which: number): Step =>
  step(
    `cancel(${which})`,
    (model) => model.queue.length > 0,
    async (model, { callers, world }) => {
      const { id } = model.queue[which % model.queue.length] as ModelCaller
      model.leave(id)
      callers[id]?.cancel()
      await world.settle()
      assert.equal(callers[id]?.over, 'AbortError')
    },
  )

const pass = (ms: number): Step =>
  step(
    `pass(${ms})`,
    () => true,
    (_, { world }) => world.pass(ms),
  ) // prettier-ignore

const outlive = (): Step =>
  step(
    'outlive()',
    (model) => model.holders.some(({ expires }) => expires),
    async (model, { world }) => {
      model.outlive()
      await world.pass(A_LIFETIME)
    },
  )

/** MOST_STEPS: with more, the steps could take longer than the lease of a holder that is not renewed. */
const MOST_STEPS = 40
const LONGEST_PAUSE = 400

const any = fc.nat(100)
const steps = fc.commands(
  [
    any.map((which) => ask(which, {})),
    any.map((which) => ask(which, {})),
    any.map((which) => ask(which, { once: true })),
    any.map((which) => ask(which, { once: true, expires: true })),
    any.map((which) => ask(which, { steal: true })),
    any.map(release),
    any.map(release),
    any.map(cancel),
    fc.integer({ min: 1, max: LONGEST_PAUSE }).map(pass),
    fc.constant(outlive()),
  ],
  { maxCommands: MOST_STEPS, size: 'max' },
)

/** The model is right for any commands in any order, and nothing is left in the end. */
export function agreement(kind: SubjectKind, storeIn: (world: VirtualWorld) => Store): fc.IAsyncProperty<unknown> {
  return fc.asyncProperty(steps, fc.nat(), fc.integer({ min: 1, max: 5 }), async (commands, seed, permits) => {
    const world = new VirtualWorld(seed)
    const store = storeIn(world)
    const subject = openSubject(kind, store, world, permits)
    const real: Real = { world, store, subject, callers: [] }
    const model = new Model(subject.capacity)
    await fc.asyncModelRun(() => ({ model, real }), commands)
    // Every waiter holds once the holders have released.
    while (model.holders.length > 0) await release(0).run(model, real)
    assert.deepEqual(model.queue, [])
    // Nothing is held after close, neither by holders nor by waiters.
    for (let i = 0; i < 3; i++) await ask(i, {}).run(model, real)
    const closing = subject.close()
    await world.pass(1)
    await closing
    assert.deepEqual(await store.inspect?.(subject.key), { holders: [], waiters: [] })
  })
}
