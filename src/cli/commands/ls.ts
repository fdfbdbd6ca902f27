import type { HolderInfo } from '../../primitives/inspect.js'
import type { Command, Input } from '../command.js'
import { exitCode } from '../exit-codes.js'
import { anyKindOption, HolderTable, heldMs, holderAsJson, kindsFrom, listingOptions } from '../listing.js'
import { JsonList, isRead, print, say } from '../output.js'
import { storeOption, withStore } from '../stores.js'

export const ls: Command = {
  usage: '[prefix] [options]',
  summary: 'who holds what, for how long, and how many wait',
  options: {
    'older-than': { value: 'DURATION', help: 'only what has been held for longer; exit status 1 if there is any' },
    ...listingOptions,
    kind: anyKindOption,
    ...storeOption,
  },
  examples: [
    ['leasehold ls', 'every lock'],
    ['leasehold ls --kind all', 'also what run --permits holds (kind semaphore), elections and the rest'],
    ['leasehold ls order:', 'names that begin so'],
    ['leasehold ls --older-than 5m; test $? = 1 && notify "a lock is stuck"', 'an alert'],
    ["leasehold ls --json | jq '.[].holder'", 'for programs'],
  ],
  run: list,
}

async function list(input: Input): Promise<number> {
  const prefix = input.atMostOne('prefix')
  const olderThan = input.duration('older-than')
  const kinds = kindsFrom(input)
  const json = input.has('json') ? new JsonList() : undefined
  const table = new HolderTable()
  let found = false
  await withStore(input, async (locks) => {
    for (const one of kinds) {
      for await (const page of locks.holderPages(prefix, { kind: one })) {
        const wanted = olderThan === undefined ? page : page.filter((holder) => isOlder(holder, olderThan))
        if (wanted.length === 0) continue
        found = true
        if (json) json.add(wanted.map(holderAsJson))
        else print(table.page(wanted))
        // A reader that is slower than the store holds up the listing instead of filling the memory.
        if (!(await isRead())) return
      }
    }
  })
  if (json) json.end()
  else if (!found) say(olderThan === undefined ? 'nothing is held' : 'nothing has been held for that long')
  return olderThan !== undefined && found ? exitCode.found : exitCode.ok
}

/** A foreign holder has no known start. It counts as older: an alert too many is better than one too few. */
function isOlder(holder: HolderInfo, ms: number): boolean {
  return (heldMs(holder) ?? Number.POSITIVE_INFINITY) > ms
}
