import { readdirSync, readFileSync } from 'node:fs'
import { inspect } from 'node:util'
import { badUsage, commandLine } from '../../testbed/command-line.js'
import { type Campaign, PrintedProving } from './proving.js'

const DEFAULT_SECONDS = 60
const NOT_TOPICS = ['main.ts', 'proving.ts']

function topics(): string[] {
  const files = readdirSync(new URL('.', import.meta.url), { withFileTypes: true })
  const campaigns = files.filter(
    (file) => file.isFile() && file.name.endsWith('.ts') && !NOT_TOPICS.includes(file.name),
  )
  return campaigns.map((file) => file.name.slice(0, -'.ts'.length)).sort()
}

/** The first comment of a campaign's file is its description. */
function aboutOf(topic: string): string {
  const source = readFileSync(new URL(`./${topic}.ts`, import.meta.url), 'utf8')
  return /^(?:\/\/|\/\*\*| \*) *(\S.*?)(?: *\*\/)?$/m.exec(source)?.[1] ?? ''
}

function usage(): string {
  const names = topics()
  const width = Math.max(0, ...names.map((name) => name.length))
  const lines = names.map((name) => `  ${name.padEnd(width)}  ${aboutOf(name)}`.trimEnd())
  return `npm run prove -- <topic> [--seed N] [--seconds N] [--only PART]

Runs a campaign in full, or one part of it (such as a store) if it has parts. Exit status 1 if a check failed.

${lines.join('\n')}`
}

function numberOption(name: string, text: string | undefined, fallback: number): number {
  if (text === undefined) return fallback
  if (!/^\d+$/.test(text) || !Number.isSafeInteger(Number(text)))
    badUsage(`--${name} takes a whole number, not "${text}"`, usage())
  return Number(text)
}

interface Asked {
  topic: string | undefined
  seed: number
  seconds: number
  only: string | undefined
}

function parse(): Asked {
  const { values, positionals } = commandLine(usage(), {
    allowPositionals: true,
    options: { seed: { type: 'string' }, seconds: { type: 'string' }, only: { type: 'string' } },
  })
  if (positionals.length > 1) badUsage('one topic at a time', usage())
  const randomSeed = Math.floor(Math.random() * 2 ** 31)
  return {
    topic: positionals[0],
    seed: numberOption('seed', values.seed, randomSeed),
    seconds: numberOption('seconds', values.seconds, DEFAULT_SECONDS),
    only: values.only,
  }
}

async function run(topic: string, { seed, seconds, only }: Asked): Promise<never> {
  const proving = new PrintedProving(seed, seconds, (line) => console.log(line), only)
  const finish = (status: number): never => {
    console.log(`\n${proving.verdict}`)
    // Exits explicitly: a campaign that failed may have left connections open. Its servers end with this process.
    process.exit(status)
  }
  const broken = (error: unknown): never => {
    proving.check('the campaign runs to its end', false, inspect(error))
    return finish(1)
  }
  process.on('uncaughtException', broken)
  process.on('SIGINT', () => {
    console.log('\ninterrupted')
    finish(130)
  })
  process.on('SIGTERM', () => finish(143))

  console.log(`${topic}: ${aboutOf(topic)}`)
  console.log(
    `npm run prove -- ${topic} --seed ${seed} --seconds ${seconds}${only === undefined ? '' : ` --only ${only}`}\n`,
  )
  try {
    const { default: campaign } = (await import(new URL(`./${topic}.ts`, import.meta.url).href)) as {
      default: Campaign
    }
    await campaign(proving)
  } catch (error) {
    return broken(error)
  }
  if (proving.passed + proving.failed === 0) proving.check('the campaign checks something', false)
  return finish(proving.succeeded ? 0 : 1)
}

const asked = parse()
const { topic } = asked
if (topic === undefined) console.log(usage())
else if (!topics().includes(topic)) badUsage(`no topic "${topic}"`, usage())
else await run(topic, asked)
