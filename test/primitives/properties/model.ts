/**
 * What must be inside at any moment, said as simply as possible: a list of those inside and a line, first come first
 * served. Random commands are given to it and to the real thing, which must agree after each of them.
 */
import { strict as assert } from 'node:assert'
import fc from 'fast-check'
import { ALL, type Store } from '../../../src/store.js'
import { type Door, type DoorKind, MORTAL_TTL, type Person, openDoor, type Wish } from './doors.js'
import { VirtualWorld } from './virtual-world.js'

/** After this nobody mortal is left, and whoever waited for them has noticed. */
const A_LIFETIME = MORTAL_TTL + 4_000

interface Guest extends Wish {
  id: number
}

class Model {
  inside: Guest[] = []
  line: Guest[] = []
  readonly capacity: number

  constructor(capacity: number) {
    this.capacity = capacity
  }

  fits({ weight }: Guest): boolean {
    return this.inside.reduce((sum, guest) => sum + guest.weight, weight) <= this.capacity
  }

  /** True if it comes in or stands in line. */
  ask(guest: Guest): boolean {
    if (guest.steal) this.inside = []
    if (guest.steal || (this.line.length === 0 && this.fits(guest))) this.inside.push(guest)
    else if (guest.once) return false
    else this.line.push(guest)
    return true
  }

  leave(id: number): void {
    this.inside = this.inside.filter((guest) => guest.id !== id)
    this.line = this.line.filter((guest) => guest.id !== id)
    this.serve()
  }

  /** The mortal are gone. */
  outlive(): void {
    this.inside = this.inside.filter(({ mortal }) => !mortal)
    this.serve()
  }

  serve(): void {
    for (let head = this.line[0]; head && this.fits(head); head = this.line[0]) {
      this.line.shift()
      this.inside.push(head)
    }
  }
}

/** The real thing. */
interface Real {
  world: VirtualWorld
  store: Store
  door: Door
  people: Person[]
}

const byNumber = (a: number, b: number): number => a - b

async function agree({ inside, line, capacity }: Model, { world, store, door, people }: Real): Promise<void> {
  await world.settle()
  const really = people.filter((person) => person.inside() && person.over === undefined).map(({ id }) => id)
  assert.deepEqual(really.sort(byNumber), inside.map(({ id }) => id).sort(byNumber), 'who is inside')
  const waiting = people.filter((person) => !person.entered && person.over === undefined).map(({ id }) => id)
  assert.deepEqual(waiting.sort(byNumber), line.map(({ id }) => id).sort(byNumber), 'who waits')
  const seen = await store.inspect?.(door.key)
  const weights = seen?.holders.map(({ weight }) => weight) ?? []
  assert.deepEqual(weights.sort(byNumber), inside.map(({ weight }) => weight).sort(byNumber), 'what the store holds')
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

const ask = (which: number, over: Partial<Wish>): Step =>
  step(
    `ask(${which}${Object.keys(over).map((key) => `, ${key}`)})`,
    () => true,
    async (model, real) => {
      const { door, people, world } = real
      const weight = over.steal && door.steals ? ALL : (door.weights[which % door.weights.length] as number)
      // A request is always renewed, and only a request can be a thief.
      const wish: Wish = {
        weight,
        once: over.once === true,
        mortal: over.mortal === true && !door.steals,
        steal: over.steal === true && door.steals,
      }
      const id = people.length
      const person = door.ask(id, wish)
      people.push(person)
      const had = model.inside.map((guest) => guest.id)
      const accepted = model.ask({ ...wish, id })
      await world.settle()
      if (!accepted) assert.match(String(person.over), /refused|LockTimeoutError/, `${id} is refused at once`)
      if (wish.steal) for (const robbed of had) assert.equal(people[robbed]?.over, 'AbortError', `${robbed} is robbed`)
    },
  )

const letGo = (which: number): Step =>
  step(
    `letGo(${which})`,
    (model) => model.inside.length > 0,
    async (model, { people }) => {
      const { id } = model.inside[which % model.inside.length] as Guest
      model.leave(id)
      const person = people[id] as Person
      await person.letGo()
      assert.equal(person.over, 'released', `${id} held it until now`)
    },
  )

const cancel = (which: number): Step =>
  step(
    `cancel(${which})`,
    (model) => model.line.length > 0,
    async (model, { people, world }) => {
      const { id } = model.line[which % model.line.length] as Guest
      model.leave(id)
      people[id]?.cancel()
      await world.settle()
      assert.equal(people[id]?.over, 'AbortError')
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
    (model) => model.inside.some(({ mortal }) => mortal),
    async (model, { world }) => {
      model.outlive()
      await world.pass(A_LIFETIME)
    },
  )

/** At most so many: what they say takes less time than a mortal lives. */
const MOST_STEPS = 40
const LONGEST_PAUSE = 400

const any = fc.nat(100)
const steps = fc.commands(
  [
    any.map((which) => ask(which, {})),
    any.map((which) => ask(which, {})),
    any.map((which) => ask(which, { once: true })),
    any.map((which) => ask(which, { once: true, mortal: true })),
    any.map((which) => ask(which, { steal: true })),
    any.map(letGo),
    any.map(letGo),
    any.map(cancel),
    fc.integer({ min: 1, max: LONGEST_PAUSE }).map(pass),
    fc.constant(outlive()),
  ],
  { maxCommands: MOST_STEPS, size: 'max' },
)

/** Whatever is asked in whatever order: the model is right, and in the end nothing is left. */
export function agreement(kind: DoorKind, storeIn: (world: VirtualWorld) => Store): fc.IAsyncProperty<unknown> {
  return fc.asyncProperty(steps, fc.nat(), fc.integer({ min: 1, max: 5 }), async (commands, seed, permits) => {
    const world = new VirtualWorld(seed)
    const store = storeIn(world)
    const door = openDoor(kind, store, world, permits)
    const real: Real = { world, store, door, people: [] }
    const model = new Model(door.capacity)
    await fc.asyncModelRun(() => ({ model, real }), commands)
    // Everybody who waits gets in once those inside let go.
    while (model.inside.length > 0) await letGo(0).run(model, real)
    assert.deepEqual(model.line, [])
    // And nothing is held after close, whoever held or waited.
    for (let i = 0; i < 3; i++) await ask(i, {}).run(model, real)
    const closing = door.close()
    await world.pass(1)
    await closing
    assert.deepEqual(await store.inspect?.(door.key), { holders: [], waiters: [] })
  })
}
