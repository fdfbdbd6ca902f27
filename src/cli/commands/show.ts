import type { Command, Input } from '../command.js'
import { exitCode } from '../exit-codes.js'
import { holderAsJson, kindFrom, listingOptions, tableOfHolders, tableOfWaiters } from '../listing.js'
import { print, printJson, say } from '../output.js'
import { storeOption, withStore } from '../stores.js'

export const show: Command = {
  usage: '<name> [options]',
  summary: 'one lock, its holders and its queue',
  options: { ...listingOptions, ...storeOption },
  examples: [
    ['leasehold show nightly-backup', 'who holds it, and who waits'],
    ["leasehold show deploy --json | jq '.waiters | length'", 'for programs'],
  ],
  run: showOne,
}

async function showOne(input: Input): Promise<number> {
  const name = input.one('name')
  const kind = kindFrom(input)
  const state = await withStore(input, (locks) => locks.inspect(name, kind))
  const { holders, waiters } = state
  if (input.has('json')) {
    printJson({ ...state, holders: holders.map(holderAsJson) })
    return exitCode.ok
  }
  if (holders.length > 0) print(tableOfHolders(holders))
  else say(`nobody holds ${JSON.stringify(name)}`)
  if (waiters.length > 0) print(`\n${tableOfWaiters(waiters)}`)
  else if (holders.length > 0) say('nobody waits')
  return exitCode.ok
}
