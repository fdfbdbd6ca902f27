import { describe, expect, test } from 'vitest'
import { type CampaignName, runCampaign, SOURCE } from '../../verify/oracle/campaign.js'
import { MUTANTS } from '../../verify/oracle/mutants.js'
import { withMutant } from '../../verify/oracle/mutate.js'

/** A short run of the oracle on one store: it passes on the unchanged sources and fails on each of their mutants. */
export function oracle(
  scheme: string,
  /** The URL of the store for a run of these sources. A mutant may need a database of its own. */
  urlFor: (source: string) => string | Promise<string>,
  campaigns: readonly CampaignName[],
  /** Of the mutants, those of these campaigns only; the others are left to `npm run prove`. Default: all. */
  mutantsOf?: readonly CampaignName[],
): void {
  describe(`the oracle on ${scheme}`, () => {
    for (const campaign of campaigns) {
      test(`${campaign}: no two processes believe to hold the lock at the same time, and tokens grow`, async () => {
        const store = await urlFor(SOURCE)
        const result = await runCampaign({ store, campaign, seconds: 3, processes: 4, handoffs: 4 })
        expect(result.violations).toEqual([])
        // A run without hand-offs between processes has proven nothing.
        expect(result.handoffs).toBeGreaterThanOrEqual(4)
      })
    }
    for (const mutant of MUTANTS.filter(({ store }) => store === scheme)) {
      if (mutantsOf && !mutantsOf.includes(mutant.campaign)) continue
      test(`fails if ${mutant.name}`, async () => {
        const result = await withMutant(mutant, async (source) => {
          const store = await urlFor(source)
          const { campaign } = mutant
          // It ends with the first violation. A slow machine has fewer occasions for one in the same time.
          return runCampaign({ store, campaign, seconds: 120, processes: 4, source, untilWrong: true })
        })
        expect(result.violations.length).toBeGreaterThan(0)
      }, 180_000)
    }
  })
}
