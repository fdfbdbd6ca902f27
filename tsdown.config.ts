import { defineConfig } from 'tsdown'

export default defineConfig({
  entry: ['src/index.ts', 'src/stores/*/index.ts', 'src/testing/index.ts', 'src/cli/main.ts', 'src/cli/guard.ts'],
  format: 'esm',
  target: 'node20',
  platform: 'node',
  dts: true,
  fixedExtension: false,
  unbundle: true,
})
