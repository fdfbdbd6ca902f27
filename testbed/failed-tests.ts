/** Says at the very end which tests failed, and why in short: of a long output often only the end is kept. */
import type { Reporter, TestCase, TestModule } from 'vitest/node'

const SHOWN = 600

interface Described {
  message?: string
  cause?: unknown
}

export default class FailedTests implements Reporter {
  onTestRunEnd(modules: readonly TestModule[]): void {
    const failed = modules.flatMap((module) => [
      ...module.errors().map(({ message }) => `${module.relativeModuleId}: ${message}`),
      ...[...module.children.allTests('failed')].map((test) => `${module.relativeModuleId} > ${lineOf(test)}`),
    ])
    // After everything that the other reporters say.
    if (failed.length > 0) process.once('exit', () => console.error(`Failed:\n${failed.join('\n')}`))
  }
}

function lineOf(test: TestCase): string {
  const messages: string[] = []
  for (
    let error: Described | undefined = test.result().errors?.[0];
    error;
    error = error.cause as Described | undefined
  ) {
    messages.push(error.message ?? '')
  }
  const message = messages.join('\ncaused by: ')
  return `${test.fullName}\n    ${message.slice(0, SHOWN).replaceAll('\n', '\n    ')}`
}
