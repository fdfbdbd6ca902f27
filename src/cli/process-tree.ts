/**
 * Which processes belong to a command, and how to reach all of them. Only Node's own modules: the watchdog loads this too.
 *
 * @module
 */
import { type ProcessFacts, UNKNOWN_SESSION, factsOf, hasInEnvironment, listProcesses } from './process-table.js'

/** A command that was started under a lock, as `leasehold run` describes it to its watchdog. */
export interface CommandIdentity {
  /** The first process of the command; 0 while it is not known yet. */
  pid: number
  /** Its start time, so that a later process with the same PID is left alone. */
  startedAt: string | undefined
  /** Whether it leads a session of its own. If not, it shares the session of a terminal with `leasehold run`. */
  ownSession: boolean
  session: number
  /** Text in the environment of the command and of every process that inherits it. */
  tag: string
}

/** The environment variable with the tags: one for each `leasehold run` around the process. */
export const TAGS = 'LEASEHOLD_TAGS'

/**
 * The inherited tags and one more: the outer `leasehold run` must still find a command that itself uses `leasehold
 * run`.
 */
export function withTag(tag: string): string {
  return process.env[TAGS] ? `${process.env[TAGS]} ${tag}` : tag
}

/** A command that was started under a lock, with all its descendants. */
export class ProcessTree {
  readonly identity: CommandIdentity
  /**
   * Members that were alive at the last listing, with their start times. A parent that dies of SIGTERM leaves children
   * behind that may have neither its environment nor its session: without this map, they would be lost with their parent.
   */
  #seen = new Map<number, string | undefined>()
  /** Sessions that a member leads, with the start time of the leader: every process in them descends from it. */
  readonly #sessions = new Map<number, string | undefined>()

  constructor(identity: CommandIdentity) {
    this.identity = identity
    // An unknown process has an unknown session, and 0 is the session of the kernel's own threads: never kill those.
    if (identity.ownSession && identity.pid > 0) this.#sessions.set(identity.pid, identity.startedAt)
  }

  static of(pid: number, ownSession: boolean, tag: string): ProcessTree {
    const facts = factsOf(pid)
    return new ProcessTree({
      pid,
      ownSession,
      tag,
      startedAt: facts?.startedAt,
      session: facts?.session ?? UNKNOWN_SESSION,
    })
  }

  /** A command whose process is not known yet. Its processes are found by the tag. */
  static unknown(tag: string): ProcessTree {
    return new ProcessTree({ pid: 0, startedAt: undefined, ownSession: false, session: UNKNOWN_SESSION, tag })
  }

  get ownSession(): boolean {
    return this.identity.ownSession
  }

  /**
   * Passes a signal on as a shell's `kill %1` would: to the group of the command. A process that put its children into
   * another group, such as `timeout`, passes the signal on itself, and they would get it twice. In a terminal, every process
   * that the command started there gets it.
   */
  signalGroup(signal: NodeJS.Signals): void {
    if (this.ownSession) send(-this.identity.pid, signal)
    else this.signalSession(signal)
  }

  /** Signals every process that the command started in its session, whatever its process group. */
  signalSession(signal: NodeJS.Signals): void {
    this.#signalAll(this.#sessionMembers(), signal)
  }

  /** Asks every process in the session to end. */
  terminateSession(): void {
    this.signalSession('SIGTERM')
    // A stopped process gets SIGTERM only when it is continued.
    this.signalSession('SIGCONT')
  }

  /** Whether a process of the command still runs in its session. A process that left the session was meant to stay. */
  sessionIsAlive(): boolean {
    return listTwice(() => this.#sessionMembers()).length > 0
  }

  /** Whether a process of the command still runs, in the session or not. */
  isAlive(): boolean {
    return listTwice(() => this.#members()).length > 0
  }

  /**
   * Sends SIGKILL to every process of the command, also to those that left the session: another process is about to hold
   * the lock. Returns true once none is alive. Call it again until then: a process that is being forked during one listing
   * is found by the next.
   */
  kill(): boolean {
    // The session goes first: reading the environment of every process takes longer than the lock may last.
    if (this.ownSession) this.signalSession('SIGKILL')
    const alive = listTwice(() => this.#members())
    this.#signalAll(alive, 'SIGKILL')
    return alive.length === 0
  }

  /**
   * Signals a whole group where it belongs to the command: the kernel then reaches processes that are being forked,
   * too.
   */
  #signalAll(members: readonly ProcessFacts[], signal: NodeJS.Signals): void {
    const pids = new Set(members.map(({ pid }) => pid))
    const groups = new Set<number>()
    for (const { group, session } of members) {
      // Never signal -1, which means every process of the machine: in a container the group of a terminal is 1.
      if (group > 1 && (this.#sessions.has(session) || pids.has(group))) groups.add(group)
    }
    for (const group of groups) send(-group, signal)
    for (const { pid, group } of members) if (!groups.has(group)) send(pid, signal)
  }

  #sessionMembers(): ProcessFacts[] {
    const { pid, session, ownSession } = this.identity
    if (!ownSession) return this.#members().filter((one) => pid === 0 || one.session === session)
    const all = byPid(listProcesses())
    return [...all.values()].filter((one) => !one.zombie && this.#isInSession(pid, one, all))
  }

  /**
   * By session or group: the session covers groups that a shell with `set -m` or `timeout` made, the group covers systems
   * that do not report sessions. The kernel does not reuse either number while a process is in it.
   */
  #isInSession(leader: number, one: ProcessFacts, all: ReadonlyMap<number, ProcessFacts>): boolean {
    if (one.session !== leader && one.group !== leader) return false
    const now = all.get(leader)
    return now === undefined || now.startedAt === this.#sessions.get(leader)
  }

  #members(): ProcessFacts[] {
    const all = byPid(listProcesses())
    const members = new Map<number, ProcessFacts>()
    for (const one of all.values()) if (this.#isMember(one, all)) members.set(one.pid, one)
    // A child of a member is a member, even if it cleared its environment.
    for (let known = -1; known < members.size; ) {
      known = members.size
      for (const one of all.values()) if (members.has(one.parent)) members.set(one.pid, one)
    }
    members.delete(process.pid)
    this.#seen = new Map([...members.values()].map(({ pid, startedAt }) => [pid, startedAt]))
    for (const { pid, session, startedAt } of members.values()) if (session === pid) this.#sessions.set(pid, startedAt)
    return [...members.values()].filter((one) => !one.zombie)
  }

  #isMember(one: ProcessFacts, all: ReadonlyMap<number, ProcessFacts>): boolean {
    const { pid, startedAt, tag } = this.identity
    if (one.pid === pid && one.startedAt === startedAt) return true
    if (this.#seen.has(one.pid) && this.#seen.get(one.pid) === one.startedAt) return true
    for (const leader of this.#sessions.keys()) if (this.#isInSession(leader, one, all)) return true
    return hasInEnvironment(one.pid, tag)
  }
}

function byPid(all: readonly ProcessFacts[]): Map<number, ProcessFacts> {
  return new Map(all.map((one) => [one.pid, one]))
}

/** A process that forks and exits while /proc is being read hides its child from one listing: only two empty ones count. */
function listTwice(list: () => ProcessFacts[]): ProcessFacts[] {
  const first = list()
  return first.length > 0 ? first : list()
}

/** Errors do not matter: a process that changed its user cannot be signalled by us, and one that is gone need not be. */
function send(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal)
  } catch {
    // The next listing shows whether it is still there.
  }
}
