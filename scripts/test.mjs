// npm test: on a fresh clone it installs what is missing, checks, and runs the suite against real servers.
// `npm test -- test/core` runs a part of the suite, without the checks.
import { ensurePackages, ensureServers } from './ensure.mjs'
import { run, tool } from './run.mjs'

const only = process.argv.slice(2)
ensurePackages()
ensureServers()
if (only.length === 0) run('checks', process.execPath, ['scripts/check.mjs'], { loud: true })
run('tests', tool('vitest'), ['run', ...only], { loud: true })
