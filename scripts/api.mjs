// The public surface as text, one file per entry in api/. A change of it has to be seen in review: `npm run api` writes
// the files anew, and the checks fail while they differ.
import { mkdirSync, readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { ensurePackages } from './ensure.mjs'
import { ROOT, run, tool } from './run.mjs'

const write = process.argv.includes('--write')
ensurePackages()
if (write) run('build', tool('tsdown'), [])

const { Extractor, ExtractorConfig } = createRequire(import.meta.url)('@microsoft/api-extractor')
const compilerOptions = {
  module: 'nodenext',
  lib: ['es2023', 'esnext.disposable'],
  types: ['node'],
  skipLibCheck: true,
}
const { exports: entries } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'))
const stale = []
/** What users can name: a type that any entry uses must be exported by the main one or by itself. */
const named = new Set(exportsOf(join(ROOT, entries['.'].import.types)))
const warnings = []
const reported = { default: { logLevel: 'warning' } }
/** Nothing here is in beta, so nothing carries a release tag; and `name` in a type called Case explains itself. */
const ignored = { 'ae-missing-release-tag': { logLevel: 'none' }, 'ae-undocumented': { logLevel: 'none' } }
mkdirSync(join(ROOT, 'api'), { recursive: true })
for (const [entry, target] of Object.entries(entries)) {
  if (typeof target === 'string') continue
  const reportFileName = `${entry === '.' ? 'leasehold' : entry.slice(2)}.api.md`
  const config = ExtractorConfig.prepare({
    packageJsonFullPath: join(ROOT, 'package.json'),
    configObjectFullPath: undefined,
    configObject: {
      projectFolder: ROOT,
      mainEntryPointFilePath: join(ROOT, target.import.types),
      compiler: { overrideTsconfig: { compilerOptions, files: [target.import.types] } },
      apiReport: {
        enabled: true,
        reportFileName,
        reportFolder: join(ROOT, 'api'),
        reportTempFolder: join(ROOT, '.cache/api'),
      },
      docModel: { enabled: false },
      dtsRollup: { enabled: false },
      tsdocMetadata: { enabled: false },
      messages: {
        compilerMessageReporting: reported,
        extractorMessageReporting: { ...reported, ...ignored },
        tsdocMessageReporting: reported,
      },
    },
  })
  const { apiReportChanged } = Extractor.invoke(config, {
    localBuild: write,
    messageCallback: (message) => {
      message.handled = true
      if (message.logLevel !== 'warning' && message.logLevel !== 'error') return
      const [, symbol = ''] = /The symbol "(\w+?)(?:_\d+)?" needs to be exported/.exec(message.text) ?? []
      if (message.messageId === 'ae-forgotten-export' && entry !== '.' && named.has(symbol)) return
      // Of the report itself, which is compared below.
      if (!message.messageId.startsWith('console-')) warnings.push(`${entry}: ${message.text}`)
    },
  })
  if (apiReportChanged && !write) stale.push(`api/${reportFileName}`)
}
if (warnings.length > 0) {
  console.error(`The public API has faults:\n${warnings.join('\n')}`)
  process.exitCode = 1
}
if (stale.length > 0) {
  console.error(`The public API is not what ${stale.join(', ')} says. Look at the change, then: npm run api`)
  process.exit(1)
}

/** The names in the export lists of a bundled declaration file. */
function exportsOf(file) {
  const lists = readFileSync(file, 'utf8').matchAll(/export (?:type )?\{([^}]*)\}/g)
  return [...lists].flatMap(([, list]) => list.split(',').map((name) => name.trim().split(/\s+/).at(-1)))
}
