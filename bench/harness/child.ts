// The process of one library: loads it, says that it is ready, and answers the parent's calls.
//
//   node child.js <JSON of Start>
import { createRequire } from 'node:module'
import { scenarios } from '../scenarios/index.js'
import type { Address, Calls, Context } from './types.js'

/** Names that a library works on in turn: a lock that is always the same name would measure one hot key. */
const NAMES = 256

export interface Start {
  scenario: string
  library: string
  address: Address
  member: number
  prefix: string
  /** URL of a `dist` folder, with the slash at its end. */
  build: string
  /** Path of the package.json beside which the peers are installed; empty if they are left out. */
  peers: string
}

export interface Call {
  id: number
  name: string
  args: object
}

function contextOf({ address, member, prefix, build, peers }: Start): Context {
  const names = Array.from({ length: NAMES }, (_, i) => `${prefix}:${i}`)
  return {
    address,
    member,
    prefix,
    name: (n) => names[n % NAMES] as string,
    leasehold: <T>(file: string) => import(new URL(file, build).href) as Promise<T>,
    peer: <T>(name: string) => {
      if (peers === '') throw new Error(`needs ${name}, which --no-peers leaves out`)
      return createRequire(peers)(name) as T
    },
  }
}

const explain = (error: unknown): string => (error instanceof Error ? (error.stack ?? error.message) : String(error))

async function answer(calls: Calls, { id, name, args }: Call): Promise<void> {
  try {
    const call = calls[name]
    if (!call) throw new Error(`there is no call "${name}"`)
    process.send?.({ id, result: (await call(args as never)) ?? null })
  } catch (error) {
    process.send?.({ id, error: explain(error) })
  }
}

// The parent is gone, or is done with this library: nothing here is worth an orderly end.
process.on('disconnect', () => process.exit())
// A peer whose lock ran out rejects a promise that nobody awaits; its calls fail by themselves.
process.on('unhandledRejection', (error) => process.stderr.write(`unhandled: ${explain(error)}\n`))

const start = JSON.parse(process.argv[2] as string) as Start
const library = scenarios.find(({ name }) => name === start.scenario)?.libraries[start.library]
if (!library) throw new Error(`there is no library "${start.library}" in scenario "${start.scenario}"`)
try {
  const calls = await library.open(contextOf(start))
  process.on('message', (call: Call) => void answer(calls, call))
  process.send?.({ id: 0, result: null })
} catch (error) {
  process.send?.({ id: 0, error: explain(error) })
}
