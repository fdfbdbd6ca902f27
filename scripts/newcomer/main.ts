/**
 * npm run newcomer: packs the package, installs it into fresh projects of every kind that people have, and runs the
 * README's first screen and a lock on Redis in each. `npm run newcomer -- bun deno` runs those whose name contains a word.
 */
import { startRedis } from '../../testbed/servers/index.js'
import { discard, install, pack, runProject } from './install.js'
import { projects } from './projects.js'

const words = process.argv.slice(2).map((word) => word.toLowerCase())
const chosen = projects.filter(
  ({ name }) => words.length === 0 || words.some((word) => name.toLowerCase().includes(word)),
)
if (chosen.length === 0) {
  console.error(`no project of that name (known: ${projects.map(({ name }) => name).join(', ')})`)
  process.exit(64)
}

console.log('packing …')
const tarball = pack()
const server = await startRedis()
let failed = 0
try {
  for (const project of chosen) {
    const began = performance.now()
    try {
      const folder = install(project, tarball)
      const ready = performance.now()
      const said = runProject(project, folder, server.url)
      const seconds = (from: number, to: number): string => ((to - from) / 1_000).toFixed(1)
      console.log(
        `ok   ${project.name} (installed in ${seconds(began, ready)} s, ran in ${seconds(ready, performance.now())} s)`,
      )
      if (process.env['VERBOSE']) console.log(said)
    } catch (error) {
      failed++
      console.log(`FAIL ${(error as Error).message}`)
    }
  }
} finally {
  await server.stop()
  discard(tarball)
}
console.log(`${chosen.length - failed} of ${chosen.length} projects run`)
process.exitCode = failed === 0 ? 0 : 1
