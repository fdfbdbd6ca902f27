/**
 * For people who write a store: every behaviour that leasehold expects of one, as test cases for any runner, and a store
 * that misbehaves on demand. See docs/writing-a-store.md.
 *
 * @module
 */
export type { Bench, Ear, Revocations, Setup } from './bench.js'
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
