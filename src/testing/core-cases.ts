import type { Case } from './case.js'
import { acquireCases } from './core-cases/acquire.js'
import { cancelCases } from './core-cases/cancel.js'
import { closeCases } from './core-cases/close.js'
import { faultCases } from './core-cases/faults.js'
import { notificationCases } from './core-cases/notifications.js'
import { holdCases } from './core-cases/hold.js'
import { inputCases } from './core-cases/input.js'
import { inspectCases } from './core-cases/inspect.js'
import { lossCases } from './core-cases/loss.js'
import { queueCases } from './core-cases/queue.js'
import { withLockCases } from './core-cases/with-lock.js'

/** Every guarantee of locks on top of a store, one sentence each. */
export function coreCases(): Case[] {
  return [
    ...acquireCases,
    ...withLockCases,
    ...queueCases,
    ...cancelCases,
    ...holdCases,
    ...lossCases,
    ...faultCases,
    ...notificationCases,
    ...inputCases,
    ...inspectCases,
    ...closeCases,
  ]
}
