/** Data goes to stdout and prose to stderr, so that a pipe gets nothing but data. */
import { writeSync } from 'node:fs'
import { isatty } from 'node:tty'
import { styleText } from 'node:util'
import { redact } from '../util/redact.js'
import { visible } from '../util/visible.js'

type Style = Parameters<typeof styleText>[0]

/** The stream that something is written to. */
export type Output = 'stdout' | 'stderr'

/** Resolves when everything printed so far has been written. Rejects if it cannot be written. */
let printed: Promise<void> = Promise.resolve()
let readerGone = false

/** Prints data and a line break. */
export function print(text: string): void {
  printPart(`${text}\n`)
}

/** Prints data without a line break. */
function printPart(text: string): void {
  // Without a listener, a write that fails would end the process before `flushed` can say why.
  if (process.stdout.listenerCount('error') === 0) process.stdout.on('error', () => {})
  const written = new Promise<void>((resolve, reject) => {
    process.stdout.write(text, (error) => {
      if (!error) return resolve()
      if (!isClosedPipe(error)) return reject(error)
      readerGone = true
      resolve()
    })
  })
  printed = printed.then(() => written)
  // `flushed` reports the error before the process exits: here it must not become an unhandled rejection.
  printed.catch(() => {})
}

/** Resolves when everything printed has been written: with false if the reader is gone, or it could not be written. */
export async function isRead(): Promise<boolean> {
  return printed.then(
    () => !readerGone,
    () => false,
  )
}

/** Resolves when everything printed has left this process: a pipe holds 64 KiB, and the rest would be lost at exit. */
export function flushed(): Promise<void> {
  return printed
}

/** "leasehold ls | head -1" closes the pipe early: the rest is not wanted, and that is no error. */
function isClosedPipe(error: NodeJS.ErrnoException): boolean {
  return error.code === 'EPIPE' || error.code === 'ERR_STREAM_DESTROYED'
}

/**
 * Prints prose to stderr, without the password of any URL in it: a URL may have been typed as the wrong argument. Not through
 * process.stderr, which would make a pipe non-blocking for the command as well, since both write to the same one; many
 * programs fail on that.
 */
export function say(text: string): void {
  try {
    // Errors quote names and holders of other processes, which a terminal must not obey.
    writeSync(2, `leasehold: ${visible(redact(text), '\n')}\n`)
  } catch {
    // The reader of stderr is gone: that must not end a run that holds the lock.
  }
}

/** Every field is always there, so that scripts need not check for it; tokens are strings, since JSON has no bigint. */
export function printJson(value: unknown): void {
  print(jsonOf(value))
}

/** The same on one line, for a stream of them. */
export function printJsonLine(value: unknown): void {
  print(jsonOf(value, 0))
}

/**
 * An array as `printJson` prints it, page by page. Without `end` it is no valid JSON, so that a part is not taken for
 * the whole.
 */
export class JsonList {
  #empty = true

  add(items: readonly unknown[]): void {
    for (const item of items) {
      printPart(`${this.#empty ? '[' : ','}\n  ${jsonOf(item).replaceAll('\n', '\n  ')}`)
      this.#empty = false
    }
  }

  end(): void {
    print(this.#empty ? '[]' : '\n]')
  }
}

function jsonOf(value: unknown, indent = 2): string {
  const plain = (_: string, item: unknown): unknown =>
    item === undefined ? null : typeof item === 'bigint' ? String(item) : item
  // JSON leaves some characters as they are that a terminal obeys. As codes they mean the same to programs.
  return visible(JSON.stringify(value, plain, indent), '\n')
}

/** Colours only on a terminal, and not if the user asked for none (no-color.org). */
export function paint(style: Style, text: string, output: Output = 'stdout'): string {
  const wanted = isatty(output === 'stdout' ? 1 : 2) && !process.env.NO_COLOR && process.env.TERM !== 'dumb'
  return wanted ? styleText(style, text) : text
}

/** Columns of equal width under their titles. */
export function table(titles: readonly string[], rows: readonly (readonly string[])[]): string {
  return new Table(titles).page(rows)
}

/** A table that is printed page by page: the titles once, and a column that became wider stays so. */
export class Table {
  readonly #titles: readonly string[]
  readonly #widths: number[]
  #begun = false

  constructor(titles: readonly string[]) {
    this.#titles = titles
    this.#widths = titles.map((title) => title.length)
  }

  page(rows: readonly (readonly string[])[]): string {
    const clean = rows.map((row) => row.map((cell) => visible(cell)))
    for (const row of clean) {
      for (const [column, cell] of row.entries())
        this.#widths[column] = Math.max(this.#widths[column] as number, cell.length)
    }
    const titles = this.#begun ? [] : [paint('dim', this.#line(this.#titles))]
    this.#begun = true
    return [...titles, ...clean.map((row) => this.#line(row))].join('\n')
  }

  #line(cells: readonly string[]): string {
    return cells
      .map((cell, column) => cell.padEnd(this.#widths[column] as number))
      .join('  ')
      .trimEnd()
  }
}
