// Real processes on one store, real disturbances, and a judge that knows nothing of the library's internals.
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { badUsage, commandLine } from '../../testbed/command-line.js'
import { type CampaignName, runCampaign } from './campaign.js'
import { MUTANTS } from './mutants.js'
import { withMutant } from './mutate.js'

const CAMPAIGNS: readonly CampaignName[] = ['plain', 'shared', 'kill', 'freeze', 'break']
const USAGE = `npm run oracle -- [--store URL] [--campaign NAME,…] [--seconds N] [--processes N] [--mutants [--only TEXT]]

  --store      any URL that openStore takes, of a server that nothing else uses (default: an SQLite file)
  --campaign   some of ${CAMPAIGNS.join(', ')} (default: all)
  --seconds    of each campaign (default: 20)
  --processes  default: 8
  --mutants    mistakes in the store, each of which has to be caught; --only: those whose names contain this`

const { values } = commandLine(USAGE, {
  options: {
    store: { type: 'string' },
    campaign: { type: 'string' },
    seconds: { type: 'string', default: '20' },
    processes: { type: 'string', default: '8' },
    mutants: { type: 'boolean', default: false },
    only: { type: 'string' },
  },
})
const folder = mkdtempSync(join(tmpdir(), 'leasehold-oracle-db-'))
process.on('exit', () => rmSync(folder, { recursive: true, force: true }))
const store = values.store ?? `sqlite:${join(folder, 'locks.db')}`
const seconds = Number(values.seconds)
const processes = Number(values.processes)
let failed = 0

const campaigns = (values.campaign?.split(',') ?? CAMPAIGNS) as CampaignName[]
for (const each of campaigns) if (!CAMPAIGNS.includes(each)) badUsage(`unknown campaign "${each}"`, USAGE)
if (!values.mutants) {
  for (const campaign of campaigns) {
    const result = await runCampaign({ store, campaign, seconds, processes })
    const { sections, handoffs, kills, freezes, breaks, violations } = result
    const harm = `${kills} kills, ${freezes} freezes, ${breaks} broken`
    const fine = violations.length === 0 && handoffs > 0
    if (!fine) failed++
    console.log(
      `${fine ? 'ok  ' : 'FAIL'} ${campaign.padEnd(7)} ${sections} sections, ${handoffs} hand-offs, ${harm}, ${violations.length} violations`,
    )
    for (const violation of violations.slice(0, 5)) console.log(`     ${violation}`)
  }
} else {
  const scheme = store.slice(0, store.indexOf(':'))
  const wanted = MUTANTS.filter(({ store: of, name }) => of === scheme && name.includes(values.only ?? ''))
  for (const mutant of wanted) {
    const result = await withMutant(mutant, (source) =>
      runCampaign({ store, campaign: mutant.campaign, seconds, processes, source, untilWrong: true }),
    )
    const caught = result.violations.length > 0
    if (!caught) failed++
    console.log(
      `${caught ? 'ok  ' : 'FAIL'} ${mutant.name}: ${caught ? `caught: ${result.violations[0]}` : 'NOT caught'}`,
    )
  }
}
process.exitCode = failed === 0 ? 0 : 1
