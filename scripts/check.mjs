// Everything that can be checked without running the tests, the quickest first.
import { mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { embed } from './embed.mjs'
import { ensurePackages } from './ensure.mjs'
import { run, tool } from './run.mjs'

ensurePackages()
embed()
run('format', tool('biome'), ['format', '.'])
run('types', process.execPath, ['node_modules/ts7/bin/tsc', '-p', '.'])
run('types of the page', process.execPath, ['node_modules/ts7/bin/tsc', '-p', 'src/dashboard/page'])
run('lint', tool('oxlint'), ['--type-aware', '--deny-warnings', 'src', 'test', 'testbed', 'verify', 'scripts', 'bench'])
run('no unused code', tool('knip'), ['--no-progress'])
run('build', tool('tsdown'), [])
run('public API is the reviewed one', process.execPath, ['scripts/api.mjs'])
run('support matrix is what the stores say', process.execPath, ['scripts/support-matrix.mjs'])

const folder = mkdtempSync(join(tmpdir(), 'leasehold-pack-'))
try {
  run('pack', 'npm', ['pack', '--ignore-scripts', '--pack-destination', folder])
  const [tarball] = readdirSync(folder)
  run('package contents', tool('publint'), ['run', join(folder, tarball), '--strict'])
  run('types resolve everywhere', tool('attw'), [join(folder, tarball), '--no-emoji'])
} finally {
  rmSync(folder, { recursive: true, force: true })
}
