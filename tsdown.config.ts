import { readdirSync } from 'node:fs'
import { defineConfig } from 'tsdown'

const files = [
  'index',
  ...readdirSync('src/stores').map((store) => `stores/${store}/index`),
  'http/index',
  'testing/index',
]
const entriesOf = (names: string[]): Record<string, string> =>
  Object.fromEntries(names.map((name) => [name, `src/${name}.ts`]))

export default defineConfig({
  entry: entriesOf([...files, 'cli/main', 'cli/watchdog']),
  // CommonJS for Jest's default mode and TypeScript's node16 CommonJS. Programs are started, never required.
  format: {
    esm: {},
    cjs: { entry: entriesOf(files) },
  },
  target: 'node20',
  platform: 'node',
  // What is marked as internal is no part of the public types.
  dts: { oxc: { stripInternal: true } },
  fixedExtension: false,
  // Only schedules and leasehold/http need them, so they are no dependencies of everybody who wants a lock.
  deps: { alwaysBundle: ['croner', 'ipaddr.js', 'structured-headers'] },
  // Jest cannot import() inside CommonJS unless Node runs with a flag.
  outputOptions: (options, format) => (format === 'cjs' ? { ...options, dynamicImportInCjs: false } : options),
})
