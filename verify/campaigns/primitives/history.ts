/** A period in which a process believed to hold `weight`, in microseconds of the common clock. */
export interface HeldPeriod {
  who: string
  weight: number
  from: number
  until: number
}

/** Moments at which more than the capacity was believed to be held. */
export function excesses(periods: readonly HeldPeriod[], capacity: number): string[] {
  const found: string[] = []
  let open: HeldPeriod[] = []
  for (const period of periods.toSorted((a, b) => a.from - b.from)) {
    open = open.filter(({ until }) => until >= period.from)
    open.push(period)
    const sum = open.reduce((total, { weight }) => total + weight, 0)
    if (sum > capacity) found.push(`${open.map(({ who }) => who).join(' and ')} at ${period.from}`)
  }
  return found
}

/** Microseconds of the clock that all processes of a machine share. */
export function clock(): number {
  return Number(process.hrtime.bigint() / 1_000n)
}

/** Pseudo-random, 0 ≤ x < 1, the same for the same seed. */
export function chances(seed: number): () => number {
  let state = (seed % 2_147_483_646) + 1
  return () => {
    state = (state * 48_271) % 2_147_483_647
    return state / 2_147_483_647
  }
}

export function median(numbers: readonly number[]): number {
  return numbers.toSorted((a, b) => a - b)[numbers.length >> 1] ?? Number.NaN
}

/** Milliseconds for people, with a fraction where that is significant. */
export function ms(value: number): string {
  return value < 20 ? value.toFixed(1) : String(Math.round(value))
}
