/**
 * For authors of a store: every guarantee that leasehold expects of a store, as test cases for any runner, and a store
 * that misbehaves on demand. See docs/writing-a-store.md.
 *
 * @module
 */
export type { EventProbe, RevocationProbe, Setup, TestContext } from './test-context.js'
export { type Alternative, type Case, type Need, lacksOf } from './case.js'
export { type ConformanceOptions, conformance, runCase } from './conformance.js'
export { coreCases } from './core-cases.js'
export { storeCases } from './store-cases.js'
export {
  type Fault,
  type FaultEffect,
  type FaultyCall,
  type FaultyOptions,
  type FaultyStore,
  type Injected,
  faulty,
} from './faulty.js'
