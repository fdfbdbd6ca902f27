// Runs commands one after the other and says which; the first that fails ends it.
import { spawnSync } from 'node:child_process'
import { fileURLToPath } from 'node:url'

export const ROOT = fileURLToPath(new URL('..', import.meta.url))

/** `label`, then the command's own output only if it fails (or always, with `loud`). */
export function run(label, command, args, { loud = false, env = {} } = {}) {
  const began = performance.now()
  const { status, stdout, stderr, error } = spawnSync(command, args, {
    cwd: ROOT,
    stdio: loud ? 'inherit' : ['ignore', 'pipe', 'pipe'],
    encoding: 'utf8',
    env: { ...process.env, ...env },
    maxBuffer: 64 * 1024 * 1024,
  })
  const took = `${((performance.now() - began) / 1_000).toFixed(1)} s`
  if (status === 0) {
    console.error(`ok   ${label} (${took})`)
    return
  }
  if (!loud) process.stderr.write(`${stdout ?? ''}${stderr ?? ''}`)
  console.error(`FAIL ${label} (${took})${error ? `: ${error.message}` : ''}`)
  process.exit(1)
}

/** A program out of node_modules. */
export const tool = (name) => `${ROOT}node_modules/.bin/${name}`
