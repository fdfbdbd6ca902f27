import { defineConfig } from 'vitest/config'

export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    globalSetup: 'scripts/support/programs.ts',
    pool: 'forks',
    // Real servers and real processes share two cores: with more workers leases of 150 ms on five servers end before they are granted.
    maxWorkers: 2,
    testTimeout: 60_000,
    hookTimeout: 120_000,
    passWithNoTests: false,
  },
})
