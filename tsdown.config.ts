import { defineConfig } from 'tsdown'

export default defineConfig({
  entry: [
    'src/index.ts',
    'src/stores/*/index.ts',
    'src/http/index.ts',
    'src/testing/index.ts',
    'src/cli/main.ts',
    'src/cli/watchdog.ts',
  ],
  format: 'esm',
  target: 'node20',
  platform: 'node',
  dts: true,
  fixedExtension: false,
  // Only schedules and leasehold/http need them, so they are no dependencies of everybody who wants a lock.
  noExternal: ['croner', 'ipaddr.js', 'structured-headers'],
})
