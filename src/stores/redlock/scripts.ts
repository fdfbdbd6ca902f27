import { type Script, scriptOf } from '../../clients/redis/script.js'
import * as lua from './lua/embedded.js'

/** `quick` handles the usual case alone: making the functions of `common` would take longer than what it has to do. */
const script = (source: string, quick = ''): Script => scriptOf(quick, lua.common, source)

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
