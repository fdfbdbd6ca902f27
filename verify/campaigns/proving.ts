/**
 * The arguments of a campaign. The same seed means the same choices; the campaign runs for about `seconds` and checks
 * what it saw.
 */
export interface Proving {
  readonly seed: number
  readonly seconds: number
  /** Of these parts of the campaign, the ones to run: all, unless one was asked for. */
  parts<T extends string>(all: readonly T[]): readonly T[]
  /** Reports progress and context, not a verdict. */
  say(line: string): void
  /** Reports one verdict. Docs may quote its figures. */
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
    readonly only?: string | undefined,
  ) {}

  parts<T extends string>(all: readonly T[]): readonly T[] {
    if (this.only === undefined) return all
    const one = all.filter((part) => part === this.only)
    if (one.length === 0) throw new Error(`no part "${this.only}" (known: ${all.join(', ')})`)
    return one
  }

  say(line: string): void {
    this.print(`     ${line}`)
  }

  check(label: string, ok: boolean, figures = ''): void {
    if (ok) this.passed++
    else this.failed++
    this.print(`${ok ? 'ok  ' : 'FAIL'} ${label}${figures && `  ${figures}`}`)
  }

  /** The closing line. A campaign without checks fails, because it has proven nothing. */
  get verdict(): string {
    return `${this.passed} passed, ${this.failed} failed`
  }

  get succeeded(): boolean {
    return this.failed === 0 && this.passed > 0
  }
}
