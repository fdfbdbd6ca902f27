/** Rounds in turn, so that a noisy moment strikes all alike. */
const ROUNDS = 9

const median = (values) => values.toSorted((a, b) => a - b)[values.length >> 1]

/**
 * Runs each contender in turn, several times, and prints the median rate of each and the ratio of the first to it.
 * `times` is how often one run does the thing.
 *
 * @param {string} title
 * @param {number} times
 * @param {Record<string, () => Promise<void>>} contenders
 * @returns {Promise<Record<string, number>>}
 */
export async function sideBySide(title, times, contenders, rounds = ROUNDS) {
  const rates = {}
  for (let round = -1; round < rounds; round++) {
    for (const [name, run] of Object.entries(contenders)) {
      const began = performance.now()
      await run()
      // The first round only warms up.
      if (round >= 0) (rates[name] ??= []).push((times / (performance.now() - began)) * 1_000)
    }
  }
  console.log(title)
  const [first] = Object.keys(contenders)
  const ours = median(rates[first])
  const result = {}
  for (const [name, all] of Object.entries(rates)) {
    const rate = median(all)
    result[name] = rate
    const ratio = name === first ? '' : `   ${first} is ${(ours / rate).toFixed(2)}x`
    console.log(`  ${name.padEnd(24)} ${Math.round(rate).toLocaleString('en').padStart(12)} /s${ratio}`)
  }
  return result
}
