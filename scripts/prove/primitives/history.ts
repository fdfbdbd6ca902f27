/** Somebody believed to have `weight` of something, from one moment to another, in microseconds of the common clock. */
export interface Section {
  who: string
  weight: number
  from: number
  until: number
}

/** Where more than there is was believed to be held at once. */
export function excesses(sections: readonly Section[], capacity: number): string[] {
  const found: string[] = []
  let open: Section[] = []
  for (const section of sections.toSorted((a, b) => a.from - b.from)) {
    open = open.filter(({ until }) => until >= section.from)
    open.push(section)
    const sum = open.reduce((total, { weight }) => total + weight, 0)
    if (sum > capacity) found.push(`${open.map(({ who }) => who).join(' and ')} at ${section.from}`)
  }
  return found
}

/** Microseconds of the clock that all processes of a machine share. */
export function clock(): number {
  return Number(process.hrtime.bigint() / 1_000n)
}

/** 0 ≤ x < 1, the same for the same seed. */
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

/** For people: milliseconds, with a fraction where that says something. */
export function ms(value: number): string {
  return value < 20 ? value.toFixed(1) : String(Math.round(value))
}
