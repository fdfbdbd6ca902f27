import { describe, expect, test } from 'vitest'
import { type CampaignName, runCampaign, SOURCE } from '../../scripts/oracle/campaign.js'
import { MUTANTS } from '../../scripts/oracle/mutants.js'
import { withMutant } from '../../scripts/oracle/mutate.js'

/** A slice of the oracle on one store: green on the sources as they are, red on each of their mutants. */
export function oracle(
  scheme: string,
  /** Where the store is, for a run of these sources: a mutant may need a place of its own. */
  place: (source: string) => string | Promise<string>,
  campaigns: readonly CampaignName[],
): void {
  describe(`the oracle on ${scheme}`, () => {
    for (const campaign of campaigns) {
      test(`${campaign}: no two believe at the same time, and tokens grow`, async () => {
        const store = await place(SOURCE)
        const result = await runCampaign({ store, campaign, seconds: 3, processes: 4, handovers: 4 })
        expect(result.violations).toEqual([])
        // A run in which the processes never met has shown nothing.
        expect(result.handovers).toBeGreaterThanOrEqual(4)
      })
    }
    for (const mutant of MUTANTS.filter((candidate) => candidate.store === scheme)) {
      test(`is red when: ${mutant.name}`, async () => {
        const result = await withMutant(mutant, async (source) => {
          const store = await place(source)
          const { campaign } = mutant
          return runCampaign({ store, campaign, seconds: 30, processes: 4, source, untilWrong: true })
        })
        expect(result.violations.length).toBeGreaterThan(0)
      })
    }
  })
}
