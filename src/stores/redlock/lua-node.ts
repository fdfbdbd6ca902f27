/**
 * A node that is a real server: every request is one script call.
 *
 * @module
 */
import { type Script, scriptOf } from '../../clients/redis/script.js'
import {
  decodePage,
  decodeRaises,
  decodeRecord,
  decodeReleases,
  decodeRenewals,
  decodeVotes,
  encodeFlag,
  encodeKeys,
  encodeMs,
  encodePrefix,
  encodeRaises,
  encodeReleases,
  encodeRenewals,
  encodeVotes,
} from './codec.js'
import type { ScriptRunner } from './connection.js'
import { FORMAT, RECORD, runChannel } from './keys.js'
import * as lua from './lua/embedded.js'
import type {
  Admission,
  NodeCallback,
  NodePage,
  NodeRecord,
  NodeRelease,
  NodeReleased,
  NodeRenewal,
  NodeRenewed,
  BatchReply,
  BatchRequest,
  NodeRevoked,
  ObservableNode,
  Raise,
  VoteReply,
  VoteRequest,
} from './node.js'

/**
 * PAGE: names or readers that one page of a listing visits. A name costs a server about six microseconds of its processor, so a
 * page keeps it from its other clients for a millisecond or two; listing.test.ts allows five. More would delay their locks.
 */
const PAGE = '200'

const INCLUDE = '\n-- include common.lua\n'

/** Each file is one script. common.lua is inserted where the file says so, behind its fast path. */
function buildScript(source: string): Script {
  const [before, behind, ...more] = source.split(INCLUDE)
  if (behind === undefined) return scriptOf(source)
  if (more.length > 0) throw new Error('a script that includes common.lua twice')
  return scriptOf(before as string, lua.common, behind)
}

type ScriptName = 'vote' | 'raise' | 'renew' | 'release' | 'identify' | 'admit' | 'list' | 'inspect' | 'revoke' | 'time'

export type RedlockScripts = Readonly<Record<ScriptName, Script>>

/** `change`: for tests, which run the same scripts without their fast paths. */
export function buildScripts(change: (source: string) => string = (source) => source): RedlockScripts {
  const build = (source: string): Script => buildScript(change(source))
  return {
    vote: build(lua.vote),
    raise: build(lua.raise),
    renew: build(lua.renew),
    release: build(lua.release),
    identify: build(lua.identify),
    admit: build(lua.admit),
    list: build(lua.list),
    inspect: build(lua.inspect),
    revoke: build(lua.revoke),
    time: build(lua.time),
  }
}

export const scripts: RedlockScripts = buildScripts()

export class LuaNode implements ObservableNode {
  readonly name: string
  readonly #runner: ScriptRunner
  readonly #nodes: string
  readonly #maxTtlMs: string
  readonly #scripts: RedlockScripts
  /** The run that was last asked for a vote, and the arguments that follow from it: they are the same for every vote. */
  #run = ''
  #runArgs: readonly string[] = []

  constructor(runner: ScriptRunner, options: { nodes: number; maxTtlMs: number; scripts?: RedlockScripts }) {
    this.name = runner.name
    this.#runner = runner
    this.#nodes = String(options.nodes)
    this.#maxTtlMs = String(options.maxTtlMs)
    this.#scripts = options.scripts ?? scripts
  }

  vote({ run, items, token, notifyWaiters }: VoteRequest, done: NodeCallback<VoteReply>): void {
    if (run !== this.#run) {
      this.#run = run
      this.#runArgs = [runChannel(run), `${run} ${this.#nodes} ${FORMAT}`, this.#maxTtlMs]
    }
    const args = [...this.#runArgs, String(token), encodeFlag(notifyWaiters), ...encodeVotes(items)]
    this.#call<VoteReply>(this.#scripts.vote, items, args, done, (answer) => decodeVotes(answer, items.length, token))
  }

  raise(items: readonly Raise[], done: NodeCallback<readonly (boolean | Error)[]>): void {
    this.#call(this.#scripts.raise, items, encodeRaises(items), done, (answers) => decodeRaises(answers, items.length))
  }

  renew({ run, items }: BatchRequest<NodeRenewal>, done: NodeCallback<BatchReply<NodeRenewed>>): void {
    this.#call(this.#scripts.renew, items, [run, this.#nodes, ...encodeRenewals(items)], done, decodeRenewals)
  }

  release(items: readonly NodeRelease[], done: NodeCallback<readonly (NodeReleased | Error)[]>): void {
    const decode = (answers: unknown[]): (NodeReleased | Error)[] => decodeReleases(answers, items.length)
    this.#call(this.#scripts.release, items, encodeReleases(items), done, decode, true)
  }

  identify({ id, known }: { id: string; known: boolean }, done: NodeCallback<NodeRecord>): void {
    this.#call(this.#scripts.identify, [], [id, encodeFlag(known), FORMAT], done, decodeRecord)
  }

  admit(admission: Admission, done: NodeCallback<boolean>): void {
    const args = [admission.id, admission.as, this.#nodes, FORMAT]
    if (admission.as === 'founder') args.push(admission.manifest)
    if (admission.as === 'returner') args.push(String(admission.counter), encodeMs(admission.longestMs))
    this.#runner.run(this.#scripts.admit, [RECORD], args, false, (answer) =>
      done(answer instanceof Error ? answer : Number(answer) === 1),
    )
  }

  list(prefix: string, from: string | undefined, done: NodeCallback<NodePage>): void {
    this.#call(this.#scripts.list, [], [from ?? '0', encodePrefix(prefix), PAGE], done, decodePage)
  }

  inspect(key: string, from: string | undefined, done: NodeCallback<NodePage>): void {
    this.#call(this.#scripts.inspect, [{ key }], [from ?? '0', PAGE], done, decodePage)
  }

  revoke(key: string, done: NodeCallback<NodeRevoked>): void {
    this.#call(this.#scripts.revoke, [{ key }], [], done, ([shared, ...owners]) => ({
      shared: Number(shared) === 1,
      owners: owners.map(String),
    }))
  }

  time(done: NodeCallback<number>): void {
    this.#call(this.#scripts.time, [], [], done, ([micros]) => Number(micros) / 1_000)
  }

  #call<T>(
    script: Script,
    items: readonly { key: string }[],
    args: string[],
    done: NodeCallback<T>,
    decode: (answer: unknown[]) => T | Error,
    cleanup = false,
  ): void {
    this.#runner.run(script, encodeKeys(items), args, cleanup, (answer) =>
      done(answer instanceof Error ? answer : decode(answer as unknown[])),
    )
  }
}
