import type { Case } from './case.js'
import { acquireCases } from './core-cases/acquire.js'
import { cancelCases } from './core-cases/cancel.js'
import { closeCases } from './core-cases/close.js'
import { faultCases } from './core-cases/faults.js'
import { hintCases } from './core-cases/hints.js'
import { holdCases } from './core-cases/hold.js'
import { inputCases } from './core-cases/input.js'
import { lookCases } from './core-cases/look.js'
import { lossCases } from './core-cases/loss.js'
import { queueCases } from './core-cases/queue.js'
import { withLockCases } from './core-cases/with-lock.js'

/** Every behaviour of locks on top of a store, as a sentence each. */
export function coreCases(): Case[] {
  return [
    ...acquireCases,
    ...withLockCases,
    ...queueCases,
    ...cancelCases,
    ...holdCases,
    ...lossCases,
    ...faultCases,
    ...hintCases,
    ...inputCases,
    ...lookCases,
    ...closeCases,
  ]
}
