import type { Actor, Operation } from './actor.js'

/** What a user, an operator or the machine does to a whole instance. */
export interface ChaosOperation extends Operation {
  grace?: number
  kind?: string
}

export async function releaseAll(actor: Actor): Promise<void> {
  taken(actor)
  actor.endLeases()
  await actor.locks.releaseAll()
}

export async function close(actor: Actor, op: ChaosOperation): Promise<void> {
  taken(actor)
  actor.closing = true
  await actor.locks.close({ grace: op.grace ?? 0 })
  actor.closed = true
  const ofProcess = actor.judge.actors.filter(({ process }) => process === actor.process)
  if (actor.connection && ofProcess.every(({ closed, distributed }) => closed && !distributed))
    actor.connection.closedAt = actor.process.local
}

export async function forceRelease(actor: Actor, op: ChaosOperation): Promise<void> {
  // It may call the store then, and no other operation may.
  if (actor.closed) return
  for (const each of actor.judge.actors) taken(each)
  try {
    await actor.locks.forceRelease(op.name, op.kind === undefined ? {} : { kind: op.kind })
  } catch (error) {
    const { code } = error as { code?: string }
    if (code !== 'STORE_UNAVAILABLE' && code !== 'CLOSED')
      actor.judge.accuse('wrong error', `forceRelease: ${String(error)}`)
  }
}

export async function crash(actor: Actor): Promise<void> {
  actor.judge.crashed(actor.process)
  actor.process.crash()
}

function taken(actor: Actor): void {
  actor.takenAt.push(actor.process.local)
}
