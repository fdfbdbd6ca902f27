// npm run prove: what a campaign needs is installed first, then verify/campaigns/main.ts takes over.
import { spawn } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { embed } from './embed.mjs'
import { ensurePackages, ensureServers } from './ensure.mjs'

const args = process.argv.slice(2)
ensurePackages()
embed()
// A list of topics needs no servers.
if (args.some((arg) => !arg.startsWith('-'))) ensureServers()

const main = spawn(process.execPath, ['--import', 'tsx', 'verify/campaigns/main.ts', ...args], {
  cwd: fileURLToPath(new URL('..', import.meta.url)),
  stdio: 'inherit',
})
// Ctrl-C reaches both of us; the campaign decides how to end.
process.on('SIGINT', () => {})
process.on('SIGTERM', () => main.kill('SIGTERM'))
main.on('exit', (code, signal) => {
  process.exitCode = signal ? 1 : (code ?? 1)
})
