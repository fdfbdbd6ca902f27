// npm run bench -- <topic>: builds, installs the peers (kept apart in bench/), and runs bench/<topic>.ts.
import { spawnSync } from 'node:child_process'
import { existsSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { ensureBuilt } from '../scripts/build.mjs'

const HERE = fileURLToPath(new URL('.', import.meta.url))
const ROOT = join(HERE, '..')
const topics = new Map(
  readdirSync(HERE)
    .filter((file) => /\.(ts|mjs)$/.test(file) && !/^(main|built|side-by-side)\./.test(file))
    .map((file) => [file.replace(/\.(ts|mjs)$/, ''), file]),
)

function run(command: string, args: string[], cwd: string): void {
  const { status } = spawnSync(command, args, { cwd, stdio: ['ignore', 'inherit', 'inherit'] })
  if (status !== 0) process.exit(status ?? 1)
}

const [topic = ''] = process.argv.slice(2)
const file = topics.get(topic)
if (!file) {
  console.error(`npm run bench -- <topic>, one of: ${[...topics.keys()].join(', ')}`)
  process.exit(64)
}
if (!existsSync(join(HERE, 'node_modules'))) {
  console.error('Installing the libraries to compare with …')
  // One of them asks for a newer Node than it needs, and whoever runs this inherits that the project itself is strict.
  run('npm', ['ci', '--no-audit', '--no-fund', '--engine-strict=false'], HERE)
}
ensureBuilt()
const loader = file.endsWith('.ts') ? ['--import', 'tsx'] : []
run(process.execPath, [...loader, join(HERE, file), ...process.argv.slice(3)], ROOT)
