/** The shell that takes the place of PID 1, below which `leasehold run` is started anew (see src/cli/init.ts). */
import { expect, test } from 'vitest'
import { INIT } from '../../src/cli/init.js'
import { Place } from './harness.js'

const place = new Place()

test('it gives stdin to its program, and exits with its status', async () => {
  const init = place.start(['/bin/sh', '-c', INIT, 'leasehold', 'sh', '-c', 'read line; echo "got $line"; exit 7'])
  init.type('something\n')
  expect(await init.ended).toMatchObject({ code: 7, stdout: 'got something\n' })
})

test('it passes signals on, and goes on waiting for what the program makes of them', async () => {
  const script = `process.on('SIGUSR1', () => console.log('usr1'))
    process.on('SIGINT', () => console.log('int'))
    process.on('SIGTERM', () => process.exit(9))
    setInterval(() => {}, 1_000)
    console.log('ready')`
  const init = place.start(['/bin/sh', '-c', INIT, 'leasehold', process.execPath, '-e', script])
  await init.says('ready')
  init.signal('SIGUSR1')
  await init.says('usr1')
  init.signal('SIGINT')
  await init.says('int')
  init.signal('SIGTERM')
  expect((await init.ended).code).toBe(9)
})

test('a program that a signal ended gives 128+n', async () => {
  const init = place.start(['/bin/sh', '-c', INIT, 'leasehold', 'sh', '-c', 'kill -9 $$'])
  expect((await init.ended).code).toBe(137)
})
