/** Runs the same for each of several, all at once: what they wait for passes once, and not once for each. */
export async function each<const T>(some: readonly T[], run: (one: T) => Promise<unknown>): Promise<void> {
  await Promise.all(some.map((one) => run(one)))
}
