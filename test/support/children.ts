import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { onTestFinished } from 'vitest'
import { type Child, startChild as start } from '../../scripts/support/children.js'

/** A folder that is gone when the test has ended. */
export function temporaryFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), 'leasehold-test-'))
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }))
  return folder
}

/** Starts a TypeScript file as a process that is dead when the test has ended. */
export function startChild<Line = Record<string, unknown>>(script: URL, args: readonly string[] = []): Child<Line> {
  const child = start<Line>(script, args)
  onTestFinished(() => child.kill('SIGKILL'))
  return child
}
