/**
 * A terminal that is redrawn in place: only lines that changed are written, so that it stays quick over ssh, and what was on
 * the terminal before comes back at the end.
 *
 * @module
 */
import { isatty } from 'node:tty'

const ENTER = '\x1b[?1049h\x1b[?25l\x1b[2J'
const LEAVE = '\x1b[?25h\x1b[?1049l'
/** What is written is cut at the right edge, instead of continued on the next line. */
const NO_WRAP = '\x1b[?7l'
const WRAP = '\x1b[?7h'

const QUIT_KEYS = new Set(['q', 'Q', '\x03', '\x04', '\x1b'])
const SUSPEND_KEY = '\x1a'

/** Whether stdout is a terminal that can be redrawn. */
export function canRedraw(): boolean {
  return isatty(1) && process.env.TERM !== 'dumb'
}

export class Screen {
  /** Called when a key asks for the end. */
  onQuit: () => void = () => {}
  /** Called when everything has to be drawn anew: another size, or back from the background. */
  onRedraw: () => void = () => {}
  #shown: string[] = []
  #open = false
  readonly #restore = (): void => this.close()

  open(): void {
    if (this.#open) return
    this.#open = true
    this.#shown = []
    process.stdout.write(`${ENTER}${NO_WRAP}`)
    // However this process ends by itself, the terminal must not stay without a cursor.
    process.once('exit', this.#restore)
    process.stdout.on('resize', this.#resized)
    // A terminal that is gone, such as that of a broken ssh connection, fails every write.
    process.stdout.on('error', this.#failed)
    if (!isatty(0)) return
    process.stdin.setRawMode(true)
    process.stdin.on('data', this.#typed)
    process.stdin.resume()
  }

  close(): void {
    if (!this.#open) return
    this.#open = false
    process.removeListener('exit', this.#restore)
    process.stdout.off('resize', this.#resized)
    if (isatty(0)) {
      process.stdin.off('data', this.#typed)
      process.stdin.setRawMode(false)
      process.stdin.pause()
    }
    process.stdout.write(`${WRAP}${LEAVE}`)
  }

  get size(): { columns: number; rows: number } {
    const { columns, rows } = process.stdout
    // A terminal that was never told its size says 0.
    return { columns: columns || 80, rows: rows || 24 }
  }

  draw(lines: readonly string[]): void {
    // A slow line has not taken the last frame yet: this one is left out, instead of piling up.
    if (!this.#open || process.stdout.writableNeedDrain) return
    let out = ''
    for (let row = 0; row < Math.max(lines.length, this.#shown.length); row++) {
      const line = lines[row] ?? ''
      // Cleared before it is written: afterwards, the last column of a full line would be cleared with the rest.
      if (line !== (this.#shown[row] ?? '')) out += `\x1b[${row + 1};1H\x1b[2K${line}`
    }
    this.#shown = [...lines]
    if (out !== '') process.stdout.write(out)
  }

  readonly #resized = (): void => {
    this.#shown = []
    process.stdout.write('\x1b[2J')
    this.onRedraw()
  }

  /** Stays on the stream: the last bytes are written while the process ends. */
  readonly #failed = (): void => this.onQuit()

  readonly #typed = (data: Buffer): void => {
    const keys = data.toString()
    if (QUIT_KEYS.has(keys)) this.onQuit()
    else if (keys === SUSPEND_KEY) this.#suspend()
  }

  /** In raw mode ctrl-z is a key like others: the terminal is given back before this process stops. */
  #suspend(): void {
    this.close()
    process.once('SIGCONT', () => {
      this.open()
      this.onRedraw()
    })
    process.kill(process.pid, 'SIGTSTP')
  }
}
