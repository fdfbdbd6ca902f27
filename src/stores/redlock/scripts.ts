import { createHash } from 'node:crypto'
import * as lua from './lua/embedded.js'

export interface Script {
  readonly source: string
  /** What EVALSHA knows it by. */
  readonly sha: string
}

/** `quick` handles the usual case alone: making the functions of `common` would take longer than what it has to do. */
const script = (source: string, quick = ''): Script => {
  const whole = `${quick}\n${lua.common}\n${source}`
  return { source: whole, sha: createHash('sha1').update(whole).digest('hex') }
}

type Name = 'vote' | 'raise' | 'renew' | 'release' | 'look' | 'admit' | 'list' | 'inspect' | 'time'

export const scripts: Readonly<Record<Name, Script>> = {
  vote: script(lua.vote, lua.quickVote),
  raise: script(lua.raise, lua.quickRaise),
  renew: script(lua.renew),
  release: script(lua.release, lua.quickRelease),
  look: script(lua.look),
  admit: script(lua.admit),
  list: script(lua.list),
  inspect: script(lua.inspect),
  time: script(lua.time),
}
