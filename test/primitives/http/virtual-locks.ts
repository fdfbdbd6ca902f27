import { memory } from '../../../src/index.js'
import { Locks } from '../../../src/locks.js'
import { until } from '../../../testbed/store-fixtures.js'
import { VirtualWorld } from '../../../testbed/virtual-world.js'

/** STEP_MS: time that passes between two looks. Less than a third of every ttl in these tests: no heartbeat is skipped. */
const STEP_MS = 25

/** Locks in virtual time: a lease ends when the test lets its time pass, however long the requests take. */
export class VirtualLocks extends Locks {
  readonly world: VirtualWorld

  constructor(ttl: `${number}ms`) {
    const world = new VirtualWorld(1)
    super(memory({ world }), { ttl }, world)
    this.world = world
  }

  /** Lets time pass until the condition holds. Resolves with how much that was, in milliseconds. */
  async passUntil(what: string, isSo: () => Promise<boolean>): Promise<number> {
    const began = this.world.now()
    await until(
      what,
      async () => {
        if (await isSo()) return true
        await this.world.pass(STEP_MS)
        return false
      },
      60_000,
    )
    return this.world.now() - began
  }

  /** Lets this much time pass, and looks again and again meanwhile. */
  async passWhile(ms: number, look: () => Promise<void>): Promise<void> {
    for (let passed = 0; passed < ms; passed += STEP_MS) {
      await look()
      await this.world.pass(STEP_MS)
    }
  }
}
