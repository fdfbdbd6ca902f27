/** The shell that replaces PID 1, below which `leasehold run` is started anew (see src/cli/pid1.ts). */
import { expect, test } from 'vitest'
import { INIT } from '../../src/cli/pid1.js'
import { CliFixture } from './harness.js'

const fixture = new CliFixture()

test('the shell gives stdin to its program, and exits with its status', async () => {
  const init = fixture.start(['/bin/sh', '-c', INIT, 'leasehold', 'sh', '-c', 'read line; echo "got $line"; exit 7'])
  init.type('something\n')
  expect(await init.ended).toMatchObject({ code: 7, stdout: 'got something\n' })
})

test('the shell passes signals on, and waits until the program exits', async () => {
  const script = `process.on('SIGUSR1', () => console.log('usr1'))
    process.on('SIGINT', () => console.log('int'))
    process.on('SIGTERM', () => process.exit(9))
    setInterval(() => {}, 1_000)
    console.log('ready')`
  const init = fixture.start(['/bin/sh', '-c', INIT, 'leasehold', process.execPath, '-e', script])
  await init.says('ready')
  init.signal('SIGUSR1')
  await init.says('usr1')
  init.signal('SIGINT')
  await init.says('int')
  init.signal('SIGTERM')
  expect((await init.ended).code).toBe(9)
})

test('the shell exits with 128+n if a signal ended its program', async () => {
  const init = fixture.start(['/bin/sh', '-c', INIT, 'leasehold', 'sh', '-c', 'kill -9 $$'])
  expect((await init.ended).code).toBe(137)
})
