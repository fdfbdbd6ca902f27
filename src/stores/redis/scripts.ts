/**
 * The scripts, as they are sent.
 *
 * @module
 */
import { createHash } from 'node:crypto'
import * as lua from './lua/embedded.js'

/** The text of each .lua file. */
export type Sources = Readonly<Record<keyof typeof lua, string>>

export interface Script {
  readonly source: string
  /** What EVALSHA knows it by. */
  readonly sha: string
}

export interface Scripts {
  readonly acquire: Script
  readonly renew: Script
  readonly release: Script
  readonly look: Script
  readonly take: Script
  readonly index: Script
  readonly list: Script
}

export const embedded: Sources = lua

/** On a cluster events are told within the shard: plain PUBLISH would visit every node of it. */
export function composeScripts(sources: Sources, cluster: boolean): Scripts {
  const common = cluster
    ? sources.common.replace("local PUBLISH = 'PUBLISH'", "local PUBLISH = 'SPUBLISH'")
    : sources.common
  return {
    acquire: script(sources.quickAcquire, common, sources.acquire),
    renew: script(common, sources.renew),
    release: script(sources.quickRelease, common, sources.release),
    look: script(common, sources.look),
    take: script(sources.take),
    index: script(sources.index),
    list: script(sources.list),
  }
}

function script(...parts: string[]): Script {
  const source = parts.join('\n')
  return { source, sha: createHash('sha1').update(source).digest('hex') }
}
