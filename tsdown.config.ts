import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { defineConfig } from 'tsdown'
import { embed } from './scripts/embed.mjs'

embed()

const files = [
  'index',
  ...readdirSync('src/stores').map((store) => `stores/${store}/index`),
  'http/index',
  'otel/index',
  'dashboard/index',
  'testing/index',
]
const entriesOf = (names: string[]): Record<string, string> =>
  Object.fromEntries(names.map((name) => [name, `src/${name}.ts`]))

/**
 * Indentation is a twentieth of the code, which the package holds twice. Lines stay, and so do the line numbers of stack traces. No source
 * has tabs, so that none of them is part of a text.
 */
function removeIndentation(folder: string): void {
  for (const file of readdirSync(folder, { recursive: true, encoding: 'utf8' })) {
    if (!/\.c?js$/.test(file)) continue
    const path = `${folder}/${file}`
    writeFileSync(path, readFileSync(path, 'utf8').replaceAll(/^\t+/gm, ''))
  }
}

export default defineConfig({
  entry: entriesOf([...files, 'cli/main', 'cli/watchdog']),
  // CommonJS for Jest's default mode and TypeScript's node16 CommonJS. Programs are started, never required.
  format: {
    esm: {},
    cjs: { entry: entriesOf(files) },
  },
  // Only names inside functions and of private members are shortened: lines and stack traces stay as they are, and the package
  // stays below its bound of 3 MB.
  minify: { compress: false, mangle: { toplevel: false, keepNames: true }, codegen: { removeWhitespace: false } },
  inputOptions: { experimental: { attachDebugInfo: 'none' } },
  target: 'node20',
  platform: 'node',
  // What is marked as internal is no part of the public types.
  dts: { oxc: { stripInternal: true } },
  // Called once, when both formats are written.
  onSuccess: ({ outDir }) => removeIndentation(outDir),
  fixedExtension: false,
  // Only schedules and leasehold/http need them, so they are no dependencies of everybody who wants a lock.
  deps: { alwaysBundle: ['croner', 'ipaddr.js', 'structured-headers'] },
  outputOptions: (options, format) => ({
    ...options,
    // What everybody imports is two files instead of nineteen: each file takes half a millisecond at the start of a process. The first
    // is all that the command line needs for its help.
    codeSplitting: {
      groups: [
        { name: 'input', test: /\/src\/(errors|util\/(duration|options|redact|visible))\.ts$/, priority: 3 },
        { name: 'leasehold', test: /\/src\/index\.ts$/, priority: 2 },
        { name: 'redis-client', test: /\/src\/clients\/redis\//, priority: 1 },
      ],
    },
    // Doc comments are for editors, which read them in the declarations: twice in the code they were a fifth of the package.
    comments: { legal: true, annotation: true, jsdoc: false },
    // Jest cannot import() inside CommonJS unless Node runs with a flag.
    ...(format === 'cjs' ? { dynamicImportInCjs: false } : {}),
  }),
})
