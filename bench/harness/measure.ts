// One scenario: every library in processes of its own, short slices in an order that rotates from round to round, and
// ratios to the floor of the same round.
import { setTimeout as sleep } from 'node:timers/promises'
import { PAUSE_MS, processorUse, waitForCalm } from './calm.js'
import { type Crew, openCrew } from './crew.js'
import { openPlace, type Place } from './places.js'
import { type LibraryResult, resultOf, type ScenarioResult } from './result.js'
import type { Figures, Library, Member, Scenario, Slice } from './types.js'

const MIN_ROUNDS = 3
const MAX_ROUNDS = 25
/** A scenario that is this old plays no further round, not even to reach the least number. */
const SCENARIO_LIMIT_MS = 150_000
const SLICE_MS = 250
/** A loop that ends this much later than it should hangs: a peer without time limits, with a server that does not answer. */
const OVERTIME_MS = 10_000
const WARM_UP_MS = 500

export interface MeasureOptions {
  /** Path of the translated child.ts. */
  program: string
  /** URL of the build by label; the first one is the working tree's. */
  builds: readonly { label: string; url: string }[]
  /** Path of the peers' package.json; left out, peers are skipped. */
  peers?: string | undefined
  seconds?: number | undefined
  calm?: boolean | undefined
  say?: ((line: string) => void) | undefined
}

interface Contender {
  label: string
  library: Library
  /** Under which name the library's process finds it in the scenario. */
  original: string
  build: string
  place: Place
  crew: Crew | undefined
  figures: (Figures | undefined)[]
  failure: string | undefined
}

/** Everyone who takes part, ours once for each build. */
async function contendersOf(
  scenario: Scenario,
  options: MeasureOptions,
  places: Map<string, Promise<Place>>,
): Promise<Contender[]> {
  const contenders: Contender[] = []
  for (const [original, library] of Object.entries(scenario.libraries)) {
    if (library.kind === 'peer' && !options.peers) continue
    const builds = library.kind === 'ours' ? options.builds : options.builds.slice(0, 1)
    for (const [nth, { label, url }] of builds.entries()) {
      const kind = library.place ?? scenario.place
      // Another commit may write other keys or tables: it gets servers of its own.
      const key = scenario.ownServers ? `${kind}/${nth}/${original}` : `${kind}/${nth}`
      const opening = places.get(key) ?? openPlace(kind)
      places.set(key, opening)
      contenders.push({
        label: nth === 0 ? original : original.replace('leasehold', label),
        library,
        original,
        build: url,
        place: await opening,
        crew: undefined,
        figures: [],
        failure: undefined,
      })
    }
  }
  return contenders
}

const runAll = async (scenario: Scenario, members: readonly Member[], { ms }: Slice): Promise<Figures> => {
  const run = (member: Member): Promise<{ count: number; ms: number }> => member.call('run', { ms }, ms + OVERTIME_MS)
  const parts = await Promise.all(members.map(run))
  const count = parts.reduce((sum, part) => sum + part.count, 0)
  const longest = Math.max(...parts.map((part) => part.ms))
  const [{ name, unit, better }] = scenario.metrics
  const perSecond = (count / longest) * 1_000
  if (better === 'higher') return { [name]: perSecond }
  return { [name]: (unit === 'µs' ? 1e6 : 1e3) / perSecond }
}

class Measurement {
  readonly #scenario: Scenario
  readonly #options: MeasureOptions
  readonly #places = new Map<string, Promise<Place>>()
  #contenders: Contender[] = []

  constructor(scenario: Scenario, options: MeasureOptions) {
    this.#scenario = scenario
    this.#options = options
  }

  #openCrew({ original, library, build, place, label }: Contender): Promise<Crew> {
    return openCrew(this.#options.program, library.processes ?? this.#scenario.processes ?? 1, {
      scenario: this.#scenario.name,
      library: original,
      address: place.address,
      prefix: `bench-${label.replaceAll(/[^\w]+/g, '-')}`,
      build,
      peers: this.#options.peers ?? '',
    })
  }

  /** A library that fails is out; the others go on. */
  async #guard(contender: Contender, work: () => Promise<void>): Promise<void> {
    if (contender.failure !== undefined) return
    try {
      await work()
    } catch (error) {
      contender.failure = error instanceof Error ? error.message : String(error)
      await contender.crew?.close()
    }
  }

  async #play(contender: Contender, ms: number): Promise<Figures> {
    const { fresh } = this.#scenario
    if (fresh) contender.crew = await this.#openCrew(contender)
    const members = contender.crew?.members ?? []
    const slice = { ms, servers: contender.place.servers }
    const figures = await (this.#scenario.drive?.(members, slice) ?? runAll(this.#scenario, members, slice))
    if (fresh) await contender.crew?.close()
    if (this.#options.calm) await sleep(PAUSE_MS)
    return figures
  }

  async #open(): Promise<void> {
    this.#contenders = await contendersOf(this.#scenario, this.#options, this.#places)
    for (const contender of this.#contenders)
      await this.#guard(contender, async () => {
        if (!this.#scenario.fresh) contender.crew = await this.#openCrew(contender)
      })
    const usual = this.#scenario.warmUpMs ?? WARM_UP_MS
    const warmUpMs = this.#options.seconds === undefined ? usual : Math.min(usual, 2 * this.#sliceMs)
    for (let round = 0; round < 2; round++)
      for (const contender of this.#contenders)
        await this.#guard(contender, async () => void (await this.#play(contender, warmUpMs)))
    for (const place of this.#places.values()) await (await place).damage()
    // Once more: libraries learn which servers do not answer, at the price of the first requests.
    if ([...this.#places.keys()].some((key) => /frozen|dead/.test(key)))
      for (const contender of this.#contenders)
        await this.#guard(contender, async () => void (await this.#play(contender, 2 * warmUpMs)))
  }

  get #sliceMs(): number {
    const usual = this.#scenario.sliceMs ?? SLICE_MS
    const { seconds } = this.#options
    return seconds === undefined ? usual : Math.max(this.#scenario.minSliceMs ?? 0, Math.min(usual, seconds * 50))
  }

  async #rounds(beganAt: number): Promise<void> {
    const contenders = this.#contenders
    const budgetMs = (this.#options.seconds ?? this.#scenario.seconds) * 1_000
    const startedAt = performance.now()
    for (let round = 0; round < MAX_ROUNDS; round++) {
      const now = performance.now()
      if (now - beganAt > SCENARIO_LIMIT_MS || (round >= MIN_ROUNDS && now - startedAt > budgetMs)) return
      for (let i = 0; i < contenders.length; i++) {
        const contender = contenders[(i + round) % contenders.length] as Contender
        await this.#guard(contender, async () => {
          contender.figures[round] = await this.#play(contender, this.#sliceMs)
        })
      }
    }
  }

  async run(): Promise<ScenarioResult> {
    const beganAt = performance.now()
    const busy = this.#options.calm ? await waitForCalm() : await processorUse()
    try {
      await this.#open()
      await this.#rounds(beganAt)
    } finally {
      await Promise.all(this.#contenders.map(({ crew }) => crew?.close()))
      await Promise.all([...this.#places.values()].map(async (place) => (await place).close()))
    }
    const tookMs = performance.now() - beganAt
    const libraries = this.#contenders.map(
      ({ label, library, figures, failure }): LibraryResult =>
        resultOf(this.#scenario, { label, library, figures, failure, floor: this.#floor(), others: this.#contenders }),
    )
    return this.#result(libraries, busy, tookMs)
  }

  /** Figures that ratios refer to. */
  #floor(): (Figures | undefined)[] {
    const { base } = this.#scenario
    const isBase = ({ label, library }: Contender): boolean =>
      base === undefined ? library.kind === 'floor' : label === base
    return this.#contenders.find(isBase)?.figures ?? []
  }

  #result(libraries: LibraryResult[], processorUseBefore: number, tookMs: number): ScenarioResult {
    const { name, title, metrics, target } = this.#scenario
    return {
      name,
      title,
      ...(target === undefined ? {} : { target }),
      metrics,
      processorUseBefore: Number(processorUseBefore.toFixed(3)),
      seconds: Number((tookMs / 1_000).toFixed(1)),
      libraries,
    }
  }
}

export function measure(scenario: Scenario, options: MeasureOptions): Promise<ScenarioResult> {
  return new Measurement(scenario, options).run()
}
