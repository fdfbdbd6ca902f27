import { type Command, type Input, UsageError } from '../command.js'
import { exitCode } from '../exit-codes.js'
import { holderAsJson, kindFrom, listingOptions, tableOfHolders } from '../listing.js'
import { print, printJson, say } from '../output.js'
import { storeOption, withStore } from '../stores.js'

export const release: Command = {
  usage: '<name> --force [options]',
  summary: 'takes a lock away from its holders',
  about: `
Break glass: the next waiter gets it at once, while the old holders may still be at work for a moment.
Holders that use leasehold notice it and stop; fencing tokens keep out what they write late.`,
  options: { force: { help: 'yes, I mean it' }, ...listingOptions, ...storeOption },
  examples: [
    ['leasehold show deploy', 'look first'],
    ['leasehold release deploy --force', 'then take it away'],
  ],
  run: releaseOne,
}

async function releaseOne(input: Input): Promise<number> {
  const name = input.one('name')
  if (!input.has('force')) {
    throw new UsageError(
      `this takes ${JSON.stringify(name)} away from its holders, which may be in the middle of something; look with "leasehold show", then add --force`,
    )
  }
  const kind = kindFrom(input)
  const cut = await withStore(input, (locks) => locks.forceRelease(name, kind))
  if (input.has('json')) printJson(cut.map(holderAsJson))
  else if (cut.length > 0) print(tableOfHolders(cut))
  say(
    cut.length > 0
      ? `taken away from ${cut.length === 1 ? 'this holder' : 'these holders'}`
      : `nobody held ${JSON.stringify(name)}`,
  )
  return exitCode.ok
}
