// Builds dist/ if any source is newer than what was built from it.
import { existsSync, readdirSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { ROOT, run, tool } from './run.mjs'

export function ensureBuilt() {
  if (isStale()) run('build', tool('tsdown'), [])
}

function isStale() {
  const built = join(ROOT, 'dist/index.js')
  if (!existsSync(built)) return true
  const since = statSync(built).mtimeMs
  const sources = readdirSync(join(ROOT, 'src'), { recursive: true })
  return sources.some((file) => statSync(join(ROOT, 'src', file)).mtimeMs > since)
}
