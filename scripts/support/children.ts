import { type ChildProcess, spawn } from 'node:child_process'
import { createInterface } from 'node:readline'
import { program } from './programs.js'

/** A process of its own that says, line by line as JSON, what happens to it. */
export interface Child<Line> {
  readonly process: ChildProcess
  readonly pid: number
  /** The next line, or an error if it ends before. */
  next(): Promise<Line>
  /** The next line that fits. */
  until(fits: (line: Line) => boolean): Promise<Line>
  tell(message: object): void
  kill(signal: NodeJS.Signals): void
  /** Its exit status, or the signal that ended it. */
  readonly ended: Promise<number | NodeJS.Signals>
}

/** Starts a TypeScript file as a process. */
export function startChild<Line = Record<string, unknown>>(script: URL, args: readonly string[] = []): Child<Line> {
  const child = spawn(process.execPath, ['--expose-gc', program(script), ...args], {
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  const ended = new Promise<number | NodeJS.Signals>((resolve) => {
    child.once('exit', (code, signal) => resolve(code ?? (signal as NodeJS.Signals)))
  })
  const lines: Line[] = []
  const waiting: { resolve: (line: Line) => void; reject: (error: Error) => void }[] = []
  createInterface({ input: child.stdout }).on('line', (text) => {
    const line = JSON.parse(text) as Line
    const next = waiting.shift()
    if (next) next.resolve(line)
    else lines.push(line)
  })
  void ended.then((how) => {
    for (const { reject } of waiting.splice(0))
      reject(new Error(`the child ended (${how}) before it said anything more`))
  })
  const next = (): Promise<Line> => {
    const line = lines.shift()
    if (line !== undefined) return Promise.resolve(line)
    return new Promise((resolve, reject) => waiting.push({ resolve, reject }))
  }
  return {
    process: child,
    pid: child.pid as number,
    next,
    async until(fits) {
      for (;;) {
        const line = await next()
        if (fits(line)) return line
      }
    },
    tell: (message) => void child.stdin.write(`${JSON.stringify(message)}\n`),
    kill: (signal) => void child.kill(signal),
    ended,
  }
}
