// Builds dist/ if any source is newer than what was built from it.
import { existsSync, mkdirSync, readdirSync, rmdirSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { ROOT, run, tool } from './run.mjs'

const LOCK = join(ROOT, '.cache/building')
/** A build takes seconds: a lock older than this was left by a process that was killed. */
const STALE_AFTER_MS = 60_000

/** Test files run side by side: while one builds, the others must not pack half of it. */
export function ensureBuilt() {
  mkdirSync(join(ROOT, '.cache'), { recursive: true })
  while (!take()) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 100)
  try {
    if (isStale()) run('build', tool('tsdown'), [])
  } finally {
    rmdirSync(LOCK)
  }
}

function take() {
  try {
    mkdirSync(LOCK)
    return true
  } catch {
    const since = statSync(LOCK, { throwIfNoEntry: false })?.mtimeMs ?? Date.now()
    if (Date.now() - since > STALE_AFTER_MS) rmdirSync(LOCK)
    return false
  }
}

function isStale() {
  const built = join(ROOT, 'dist/index.js')
  if (!existsSync(built) || !existsSync(join(ROOT, 'dist/index.cjs'))) return true
  const since = statSync(built).mtimeMs
  const sources = readdirSync(join(ROOT, 'src'), { recursive: true })
  return sources.some((file) => statSync(join(ROOT, 'src', file)).mtimeMs > since)
}
