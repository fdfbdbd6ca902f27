/** What a campaign gets. The same seed means the same choices; it runs for about `seconds` and checks what it saw. */
export interface Proving {
  readonly seed: number
  readonly seconds: number
  /** Progress and context, not a verdict. */
  say(line: string): void
  /** One verdict. Figures are what docs may quote. */
  check(label: string, ok: boolean, figures?: string): void
}

export type Campaign = (proving: Proving) => Promise<void>

/** A `Proving` that prints, and counts for the closing line. */
export class PrintedProving implements Proving {
  passed = 0
  failed = 0

  constructor(
    readonly seed: number,
    readonly seconds: number,
    readonly print: (line: string) => void,
  ) {}

  say(line: string): void {
    this.print(`     ${line}`)
  }

  check(label: string, ok: boolean, figures = ''): void {
    if (ok) this.passed++
    else this.failed++
    this.print(`${ok ? 'ok  ' : 'FAIL'} ${label}${figures && `  ${figures}`}`)
  }

  /** The closing line. A campaign that checked nothing has proved nothing. */
  get verdict(): string {
    return `${this.passed} passed, ${this.failed} failed`
  }

  get succeeded(): boolean {
    return this.failed === 0 && this.passed > 0
  }
}
