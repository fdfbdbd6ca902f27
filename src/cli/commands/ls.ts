import { type HolderInfo, LOCK_KINDS } from '../../primitives/lookout.js'
import type { Command, Input } from '../command.js'
import { exitCode } from '../exit-codes.js'
import { heldMs, holderAsJson, listingOptions, tableOfHolders } from '../listing.js'
import { print, printJson, say } from '../output.js'
import { storeOption, withStore } from '../stores.js'

export const ls: Command = {
  usage: '[prefix] [options]',
  summary: 'who holds what, for how long, and how many wait',
  options: {
    'older-than': { value: 'DURATION', help: 'only what has been held for longer; exit status 1 if there is any' },
    ...listingOptions,
    kind: { value: 'KIND', help: `one of ${LOCK_KINDS.join(', ')}, all (default lock)` },
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
  const kind = input.oneOf('kind', [...LOCK_KINDS, 'all']) ?? 'lock'
  const kinds = kind === 'all' ? LOCK_KINDS : [kind]
  const lists = await withStore(input, (locks) => Promise.all(kinds.map((one) => locks.holders(prefix, { kind: one }))))
  const all = lists.flat()
  const wanted = olderThan === undefined ? all : all.filter((holder) => isOlder(holder, olderThan))
  if (input.has('json')) printJson(wanted.map(holderAsJson))
  else if (wanted.length > 0) print(tableOfHolders(wanted, true))
  else say(olderThan === undefined ? 'nothing is held' : 'nothing has been held for that long')
  return olderThan !== undefined && wanted.length > 0 ? exitCode.found : exitCode.ok
}

/** Of somebody who does not say since when, nobody can say it: better one alert too many. */
function isOlder(holder: HolderInfo, ms: number): boolean {
  return (heldMs(holder) ?? Number.POSITIVE_INFINITY) > ms
}
