import type { World } from '../../../src/util/world.js'
import { VirtualWorld } from '../../../testbed/virtual-world.js'

/** Virtual time for schedules: it starts when it is told to, and is named as people name times. */
export class ScheduleWorld extends VirtualWorld {
  override readonly random = (): number => 0.5

  constructor(start: string) {
    super(1, { start: Date.parse(start), turns: 20 })
  }

  /** Runs everything that is due until then, in order. */
  async advanceTo(time: string | number): Promise<void> {
    const target = typeof time === 'number' ? time : Date.parse(time)
    await this.settle()
    await this.pass(Math.max(target - this.now(), 0))
  }

  /** The machine sleeps: time passes, and no timer runs until it wakes. */
  async sleepTo(time: string): Promise<void> {
    this.freeze(Date.parse(time) - this.now())
    await this.advanceTo(this.now())
  }

  /** The same time, on a clock that is wrong by this much. */
  skewed(ms: number): World {
    const { after, random, bytes } = this
    return { after, random, bytes, now: () => this.now() + ms, date: () => this.now() + ms }
  }
}
