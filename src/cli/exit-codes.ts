import { constants } from 'node:os'

/** The exit statuses of `leasehold`, with the numbers of sysexits.h, which scripts already know. */
export const exitCode = {
  ok: 0,
  /** `ls --older-than` found at least one holder, or `doctor` something that makes the store unsafe. */
  found: 1,
  /** Bad usage: nothing was touched. */
  usage: 64,
  /** The store cannot be reached. Says nothing about who holds the lock. */
  unavailable: 69,
  /** The lock was lost while the command ran, or leasehold itself failed: the work may be incomplete. */
  lost: 70,
  /** The requested data could not be written to stdout. */
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
