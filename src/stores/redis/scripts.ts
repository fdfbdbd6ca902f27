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
  readonly inspect: Script
  readonly take: Script
  readonly index: Script
  readonly list: Script
  readonly probe: Script
  readonly time: Script
}

export const embedded: Sources = lua

const INCLUDE = '-- INCLUDE common.lua\n'

/** On a cluster events are told within the shard: plain PUBLISH would visit every node of it. */
export function composeScripts(sources: Sources, cluster: boolean): Scripts {
  const compose = (source: string): Script => {
    const whole = source.replace(INCLUDE, () => sources.common)
    return scriptOf(cluster ? whole.replaceAll("local PUBLISH = 'PUBLISH'", "local PUBLISH = 'SPUBLISH'") : whole)
  }
  return {
    acquire: compose(sources.acquire),
    renew: compose(sources.renew),
    release: compose(sources.release),
    inspect: compose(sources.inspect),
    take: compose(sources.take),
    index: compose(sources.index),
    list: compose(sources.list),
    probe: compose(sources.probe),
    time: compose(sources.time),
  }
}
