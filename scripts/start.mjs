// npm start: on a fresh clone it installs and builds what is missing, then tells the story.
import { existsSync, readdirSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { ensurePackages } from './ensure.mjs'
import { ROOT, run, tool } from './run.mjs'

ensurePackages()
if (isStale()) run('build', tool('tsdown'), [])
await import('./demo/story.mjs')

/** Whether any source is newer than what was built from it. */
function isStale() {
  const built = join(ROOT, 'dist/index.js')
  if (!existsSync(built)) return true
  const since = statSync(built).mtimeMs
  return readdirSync(join(ROOT, 'src'), { recursive: true }).some(
    (file) => statSync(join(ROOT, 'src', file)).mtimeMs > since,
  )
}
