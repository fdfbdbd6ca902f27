import type { Operation } from './actor.js'
import { mix, Random } from './random.js'
import { chooseShape, type Shape } from './shape.js'
import { chooseWeather, type Weather } from './weather.js'
import { WORKLOADS, type Workload } from './workloads.js'

/** A schedule as plain data: what is done when, and what may go wrong. */
export interface Plan {
  seed: number
  number: number
  workload: string
  shape: Shape
  weather: Weather
  /** Which process each instance of the library runs in. */
  actors: number[]
  /** From then on nothing goes wrong any more, and everything has to come to an end. */
  lastsMs: number
  operations: Operation[]
  /** How often all of it is done, one round after the other. */
  rounds: number
}

/** Operations after which an instance takes no part in a second round. */
const ENDS = ['crash', 'close']

/** The schedule of this number. `only`: of this workload, instead of all of them by turns. `shaped`: on this kind of store. */
export function planOf(seed: number, number: number, only?: string, shaped?: string): Plan {
  const random = new Random(mix(mix(seed, 17), number))
  const known = only === undefined ? WORKLOADS : WORKLOADS.filter(({ name }) => name === only)
  const workload = known[number % known.length] as Workload
  let shape = chooseShape(random)
  const wanted = (): boolean => workload.fits(shape) && (shaped === undefined || shape.name === shaped)
  for (let tries = 0; !wanted(); tries++) {
    if (tries > 1_000) throw new Error(`${workload.name} does not run on "${shaped}"`)
    shape = chooseShape(random)
  }
  const lastsMs = workload.lastsMs ?? random.pick([800, 3_000, 6_000])
  const weather = workload.weather?.(random, lastsMs) ?? chooseWeather(random, lastsMs)
  const actors = shape.inProcess ? [0, 0, 0].slice(random.below(2)) : chooseProcesses(random)
  let operations = workload.operations(random, {
    actors: actors.length,
    lastsMs,
    shape,
    calm: weather.calm,
    aimed: weather.aimed,
    contended: random.chance(0.4) || weather.aimed,
  })
  const rounds = workload.repeats && random.chance(0.05) ? 3 : 1
  if (rounds > 1) operations = operations.filter(({ type }) => !ENDS.includes(type))
  for (const [id, operation] of operations.entries()) operation.id = id + 1
  operations.sort((a, b) => a.at - b.at)
  return {
    seed: mix(mix(seed, 23), number),
    number,
    workload: workload.name,
    shape,
    weather,
    actors,
    lastsMs,
    operations,
    rounds,
  }
}

/** Two to four processes, usually with one instance each. */
function chooseProcesses(random: Random): number[] {
  const actors = [0, 1, 2, 3].slice(0, 2 + random.below(3))
  if (random.chance(0.2)) actors.push(0)
  return actors
}
