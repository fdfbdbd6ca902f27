import { defineConfig } from 'vitest/config'

export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    pool: 'forks',
    // Real servers and real processes: half of the time they wait for something.
    maxWorkers: 3,
    testTimeout: 60_000,
    hookTimeout: 120_000,
    passWithNoTests: false,
  },
})
