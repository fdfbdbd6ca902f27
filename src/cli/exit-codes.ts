import { constants } from 'node:os'

/** What the exit status of `leasehold` says, in the numbers of sysexits.h, which scripts already know. */
export const exitCode = {
  ok: 0,
  /** `ls --older-than` found some. */
  found: 1,
  /** Bad usage: nothing was touched. */
  usage: 64,
  /** The store cannot be reached. Says nothing about who holds the lock. */
  unavailable: 69,
  /** The lock was lost while the command ran, or leasehold itself failed: the work may be incomplete. */
  lost: 70,
  /** What was asked for could not be written to stdout. */
  outputFailed: 74,
  /** The lock stayed busy. */
  busy: 75,
  /** The command is there, but cannot be executed. As shells say it. */
  notExecutable: 126,
  /** There is no such command. As shells say it. */
  notFound: 127,
} as const

/** 128+n, as shells report a command that a signal ended. */
export function exitCodeOfSignal(signal: NodeJS.Signals): number {
  return 128 + constants.signals[signal]
}
