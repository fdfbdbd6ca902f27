/**
 * The scripts, as they are sent.
 *
 * @module
 */
import { type Script, scriptOf } from '../../clients/redis/script.js'
import * as lua from './lua/embedded.js'

/** The text of each .lua file. */
export type Sources = Readonly<Record<keyof typeof lua, string>>

export interface Scripts {
  readonly acquire: Script
  readonly renew: Script
  readonly release: Script
  readonly look: Script
  readonly take: Script
  readonly index: Script
  readonly list: Script
  readonly knock: Script
  readonly time: Script
}

export const embedded: Sources = lua

/** On a cluster events are told within the shard: plain PUBLISH would visit every node of it. */
export function composeScripts(sources: Sources, cluster: boolean): Scripts {
  const telling = (source: string): string =>
    cluster ? source.replace("local PUBLISH = 'PUBLISH'", "local PUBLISH = 'SPUBLISH'") : source
  const common = telling(sources.common)
  return {
    acquire: scriptOf(sources.quickAcquire, common, sources.acquire),
    renew: scriptOf(common, sources.renew),
    release: scriptOf(telling(sources.quickRelease), common, sources.release),
    look: scriptOf(common, sources.look),
    take: scriptOf(sources.take),
    index: scriptOf(sources.index),
    list: scriptOf(sources.list),
    knock: scriptOf(sources.knock),
    time: scriptOf(sources.time),
  }
}
