import type { Random } from './random.js'

/** A time in which the server does not answer. */
export interface Outage {
  from: number
  to: number
  /** `refused`: calls reject at once. `silent`: calls are never answered. */
  how: 'refused' | 'silent'
  /** Subscriptions and open requests are gone afterwards. Leases survive. */
  restart: boolean
}

/** What may go wrong in a schedule, and how often: probabilities of each call, push, event or clock reading. */
export interface Weather {
  /** No faults at all, quick answers, equal clocks: then the strict promises are judged too. */
  calm: boolean
  /** Workloads ask for short leases that everybody wants: the faults strike hand-offs and expired leases. */
  aimed: boolean
  /** Of each message, in milliseconds. */
  latency: readonly [number, number]
  loseRequest: number
  breakRequest: number
  loseReply: number
  breakReply: number
  slowRequest: number
  slowReply: number
  losePush: number
  latePush: number
  doublePush: number
  /** How long slow calls and late pushes take. */
  slowMs: readonly [number, number]
  /** After any event of a process: it freezes. */
  freeze: number
  freezeMs: readonly [number, number]
  /** At any reading of a clock: the process loses its processor meanwhile. */
  jump: number
  jumpMs: readonly [number, number]
  /** At any event of a process: its wall clock is set to another time. */
  setWallClock: number
  /** Clocks run at different speeds, within what the core allows for. */
  drift: boolean
  outages: readonly Outage[]
}

const CALM: Weather = {
  calm: true,
  aimed: false,
  latency: [0.1, 0.9],
  loseRequest: 0,
  breakRequest: 0,
  loseReply: 0,
  breakReply: 0,
  slowRequest: 0,
  slowReply: 0,
  losePush: 0,
  latePush: 0,
  doublePush: 0,
  slowMs: [5, 4_000],
  freeze: 0,
  freezeMs: [20, 5_000],
  jump: 0,
  jumpMs: [1, 3_000],
  setWallClock: 0,
  drift: false,
  outages: [],
}

const KINDS = [
  'loseRequest',
  'breakRequest',
  'loseReply',
  'breakReply',
  'slowRequest',
  'slowReply',
  'losePush',
  'latePush',
  'doublePush',
] as const

/** One or two kinds of faults, and these often: what they lead to is not hidden by others. */
function chooseSingle(random: Random): Weather {
  const weather = { ...CALM, calm: false, drift: random.chance(0.5) }
  weather.latency = random.pick([
    [0.1, 0.9],
    [0.5, 12],
  ] as const)
  for (let i = 0; i < 2; i++) weather[random.pick(KINDS)] = random.spread(0.05, 0.5)
  if (random.chance(0.3)) weather.freeze = random.spread(0.01, 0.1)
  weather.slowMs = [random.pick([5, 100]), random.pick([400, 1_500, 4_000])]
  weather.freezeMs = [20, random.pick([400, 2_000, 6_000])]
  return weather
}

/** Only pushes go wrong: most come late, some after their lease has ended. */
export function latePushes(random: Random): Weather {
  const slowMs = [random.pick([30, 100, 300]), random.pick([800, 2_000, 4_000])] as const
  const losePush = random.pick([0, 0.2])
  return { ...CALM, calm: false, aimed: true, latePush: random.between(0.4, 0.9), losePush, slowMs }
}

/** Requests and answers are slow, some slower than the ttl: leases end before their holder knows of them. */
export function slowAnswers(random: Random): Weather {
  const slowMs = [random.pick([30, 100]), random.pick([300, 800, 2_000])] as const
  const [slowReply, slowRequest] = [random.between(0.1, 0.5), random.between(0.1, 0.4)]
  return { ...CALM, calm: false, aimed: true, slowReply, slowRequest, slowMs }
}

/** Each kind of fault is left out of half of the schedules: faults hide each other when all of them strike at once. */
export function chooseWeather(random: Random, lastsMs: number): Weather {
  if (random.chance(0.25)) return CALM
  if (random.chance(0.35)) return chooseSingle(random)
  const some = (most: number): number => (random.chance(0.5) ? random.spread(most / 20, most) : 0)
  const longest = random.pick([400, 1_500, 4_000])
  const outages: Outage[] = []
  if (random.chance(0.25)) {
    const from = random.between(0, lastsMs)
    const to = from + random.spread(50, 6_000)
    outages.push({ from, to, how: random.pick(['refused', 'silent'] as const), restart: random.chance(0.5) })
  }
  return {
    calm: false,
    aimed: false,
    latency: random.pick([
      [0.1, 0.9],
      [0.5, 12],
      [5, 60],
    ] as const),
    loseRequest: some(0.15),
    breakRequest: some(0.15),
    loseReply: some(0.2),
    breakReply: some(0.15),
    slowRequest: some(0.2),
    slowReply: some(0.2),
    losePush: some(0.4),
    latePush: some(0.4),
    doublePush: some(0.3),
    slowMs: [5, longest],
    freeze: some(0.08),
    freezeMs: [20, random.pick([400, 2_000, 6_000])],
    jump: some(0.01),
    jumpMs: [1, random.pick([50, 1_000, 4_000])],
    setWallClock: some(0.02),
    drift: random.chance(0.7),
    outages,
  }
}
