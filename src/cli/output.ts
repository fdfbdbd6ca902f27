/** Data goes to stdout and prose to stderr, so that a pipe gets nothing but data. */
import { writeSync } from 'node:fs'
import { isatty } from 'node:tty'
import { styleText } from 'node:util'

type Style = Parameters<typeof styleText>[0]

/** Where something is written to. */
export type Output = 'stdout' | 'stderr'

/** Everything printed so far, once the reader has it. Rejects if it cannot be written. */
let printed: Promise<void> = Promise.resolve()

/** Data. */
export function print(text: string): void {
  // Without a listener, a write that fails would end the process before `flushed` can tell why.
  if (process.stdout.listenerCount('error') === 0) process.stdout.on('error', () => {})
  const written = new Promise<void>((resolve, reject) => {
    process.stdout.write(`${text}\n`, (error) => (error && !isClosedPipe(error) ? reject(error) : resolve()))
  })
  printed = printed.then(() => written)
  // Whoever exits asks for it.
  printed.catch(() => {})
}

/** Resolves when everything printed has left this process: a pipe holds 64 KiB, and what is beyond dies with us. */
export function flushed(): Promise<void> {
  return printed
}

/** "leasehold ls | head -1" closes the pipe early: nobody wants the rest. */
function isClosedPipe(error: NodeJS.ErrnoException): boolean {
  return error.code === 'EPIPE' || error.code === 'ERR_STREAM_DESTROYED'
}

/**
 * Prose. Not through process.stderr, which would make a pipe non-blocking for the command as well, since both write to
 * the same one; many programs fail on that.
 */
export function say(text: string): void {
  try {
    writeSync(2, `leasehold: ${text}\n`)
  } catch {
    // Nobody reads it: that changes nothing about the lock.
  }
}

/** Every field is always there, so that scripts need not ask first; tokens are strings, since JSON has no bigint. */
export function printJson(value: unknown): void {
  const plain = (_: string, item: unknown): unknown =>
    item === undefined ? null : typeof item === 'bigint' ? String(item) : item
  print(JSON.stringify(value, plain, 2))
}

/** Colours only on a terminal, and not if the user asked for none (no-color.org). */
export function paint(style: Style, text: string, output: Output = 'stdout'): string {
  const wanted = isatty(output === 'stdout' ? 1 : 2) && !process.env.NO_COLOR && process.env.TERM !== 'dumb'
  return wanted ? styleText(style, text) : text
}

/** Columns of equal width under their titles. */
export function table(titles: readonly string[], rows: readonly (readonly string[])[]): string {
  const clean = rows.map((row) => row.map(printable))
  const widths = titles.map((title, column) => Math.max(title.length, ...clean.map((row) => row[column]?.length ?? 0)))
  const line = (cells: readonly string[]): string =>
    cells
      .map((cell, column) => cell.padEnd(widths[column] as number))
      .join('  ')
      .trimEnd()
  return [paint('dim', line(titles)), ...clean.map(line)].join('\n')
}

/** Names and metadata come from others: what could move the cursor or set the title of a terminal is shown as its code. */
export function printable(text: string): string {
  // oxlint-disable-next-line no-control-regex -- they are what this looks for
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]/g, (character) => {
    return `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`
  })
}
