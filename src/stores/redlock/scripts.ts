import { type Script, scriptOf } from '../../clients/redis/script.js'
import * as lua from './lua/embedded.js'

const INCLUDE = '\n-- include common.lua\n'

/** Each file is one script. What it shares with the others stands where it says so, behind its fast path. */
function script(source: string): Script {
  const [before, behind, ...more] = source.split(INCLUDE)
  if (behind === undefined) return scriptOf(source)
  if (more.length > 0) throw new Error('a script that includes common.lua twice')
  return scriptOf(before as string, lua.common, behind)
}

type Name = 'vote' | 'raise' | 'renew' | 'release' | 'look' | 'admit' | 'list' | 'inspect' | 'revoke' | 'time'

export type Scripts = Readonly<Record<Name, Script>>

/** `change`: for tests, which try the same without the fast paths. */
export function buildScripts(change: (source: string) => string = (source) => source): Scripts {
  const build = (source: string): Script => script(change(source))
  return {
    vote: build(lua.vote),
    raise: build(lua.raise),
    renew: build(lua.renew),
    release: build(lua.release),
    look: build(lua.look),
    admit: build(lua.admit),
    list: build(lua.list),
    inspect: build(lua.inspect),
    revoke: build(lua.revoke),
    time: build(lua.time),
  }
}

export const scripts: Scripts = buildScripts()
