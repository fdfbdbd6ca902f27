/** Passes bare numbers as ttl, and reports for which of them a warning was emitted. */
import { createLocks, memory } from '../../src/index.js'

const warnings: string[] = []
process.on('warning', (warning) => void warnings.push(warning.message))
const locks = createLocks(memory(), { ttl: 30 })
await locks.withLock('a', () => {}, { ttl: 60 })
await locks.withLock('a', () => {}, { ttl: '50ms' })
await locks.withLock('a', () => {}, { ttl: 100 })
await new Promise(setImmediate)
console.log(JSON.stringify(warnings))
