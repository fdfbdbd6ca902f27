/** Child processes of tests and campaigns, and the temporary folders that they share. */
import { type ChildProcess, spawn } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { program } from './programs.js'

/** Registers a clean-up: `onTestFinished` in a test. */
export type AtEnd = (cleanUp: () => void) => void

/** A separate process that reports what happens to it, one JSON value per line. */
export interface Child<Report> {
  readonly process: ChildProcess
  readonly pid: number
  /** Resolves with the next report. Rejects if the process ends before. */
  next(): Promise<Report>
  /** Resolves with the next report that fits. */
  until(fits: (report: Report) => boolean): Promise<Report>
  tell(message: object): void
  kill(signal: NodeJS.Signals): void
  /** The exit status, or the signal that ended the process. */
  readonly ended: Promise<number | NodeJS.Signals>
}

/** Makes a folder that is removed at the end. */
export function temporaryFolder(atEnd: AtEnd): string {
  const folder = mkdtempSync(join(tmpdir(), 'leasehold-test-'))
  atEnd(() => rmSync(folder, { recursive: true, force: true }))
  return folder
}

/** Starts a TypeScript file as a process. With `atEnd` it is killed at the end: a failed test must not leave it behind. */
export function startChild<Report = Record<string, unknown>>(
  script: URL,
  args: readonly string[] = [],
  atEnd?: AtEnd,
): Child<Report> {
  const child = spawn(process.execPath, ['--expose-gc', program(script), ...args], {
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  atEnd?.(() => void child.kill('SIGKILL'))
  const ended = new Promise<number | NodeJS.Signals>((resolve) => {
    child.once('exit', (code, signal) => resolve(code ?? (signal as NodeJS.Signals)))
  })
  const next = reportsOf<Report>(child.stdout, ended)
  return {
    process: child,
    pid: child.pid as number,
    next,
    async until(fits) {
      for (;;) {
        const report = await next()
        if (fits(report)) return report
      }
    },
    tell: (message) => void child.stdin.write(`${JSON.stringify(message)}\n`),
    kill: (signal) => void child.kill(signal),
    ended,
  }
}

/** Returns a function that resolves with the next report, in order, and rejects once the process has ended. */
function reportsOf<Report>(
  output: NodeJS.ReadableStream,
  ended: Promise<number | NodeJS.Signals>,
): () => Promise<Report> {
  const reports: Report[] = []
  const waiting: { resolve: (report: Report) => void; reject: (error: Error) => void }[] = []
  createInterface({ input: output }).on('line', (text) => {
    const report = JSON.parse(text) as Report
    const next = waiting.shift()
    if (next) next.resolve(report)
    else reports.push(report)
  })
  void ended.then((how) => {
    for (const { reject } of waiting.splice(0)) reject(new Error(`the child ended (${how}) before its next report`))
  })
  return () => {
    const report = reports.shift()
    if (report !== undefined) return Promise.resolve(report)
    return new Promise((resolve, reject) => waiting.push({ resolve, reject }))
  }
}
