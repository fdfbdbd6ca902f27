import type { Case } from './case.js'
import { atomicCases } from './cases/atomic.js'
import { batchCases } from './cases/batches.js'
import { exclusionCases } from './cases/exclusion.js'
import { forceCases } from './cases/force.js'
import { handoffCases } from './cases/handoff.js'
import { identityCases } from './cases/identity.js'
import { largeListingCases } from './cases/large-listing.js'
import { leaseCases } from './cases/leases.js'
import { queueOrderCases } from './cases/queue-order.js'
import { mixedBatchCases } from './cases/mixed-batches.js'
import { nameCases } from './cases/names.js'
import { queueExpiryCases } from './cases/queue-expiry.js'
import { queueEntryCases } from './cases/queue-entries.js'
import { rateStateCases } from './cases/rate-state.js'
import { rateCases } from './cases/rate.js'
import { releaseCases } from './cases/releases.js'
import { revocationCases } from './cases/revocations.js'
import { contentionCases } from './cases/contention.js'
import { tokenBlockCases } from './cases/token-blocks.js'
import { tokenCases } from './cases/tokens.js'
import { valueCases } from './cases/values.js'
import { viewCases } from './cases/views.js'
import { watchCases } from './cases/watch.js'
import { watermarkCases } from './cases/watermark.js'

/** Every guarantee of the store contract, one sentence each. */
export function storeCases(): Case[] {
  return [
    ...exclusionCases,
    ...contentionCases,
    ...leaseCases,
    ...releaseCases,
    ...identityCases,
    ...tokenCases,
    ...tokenBlockCases,
    ...queueOrderCases,
    ...queueExpiryCases,
    ...queueEntryCases,
    ...handoffCases,
    ...watchCases,
    ...watermarkCases,
    ...batchCases,
    ...mixedBatchCases,
    ...atomicCases,
    ...forceCases,
    ...revocationCases,
    ...valueCases,
    ...nameCases,
    ...viewCases,
    ...largeListingCases,
    ...rateCases,
    ...rateStateCases,
  ]
}
