// npm start: several real processes take turns on one lock, one is killed while it holds it, the lock moves on.
import { fork } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { styleText } from 'node:util'

const NAMES = ['ana', 'ben', 'cleo', 'dan']
const TURNS_BEFORE_THE_KILL = 8
const TURNS_AFTER_IT = 8

const colourful = process.stdout.isTTY && !process.env.NO_COLOR
const paint = (style, text) => (colourful ? styleText(style, text) : text)
const say = (text = '') => console.log(text)

const folder = mkdtempSync(join(tmpdir(), 'leasehold-start-'))
const counter = join(folder, 'counter')
const began = performance.now()
const workers = new Map()
const tokens = []
let finished = 0
let interrupted = 0
let killedAt
let killed
let gap

process.on('exit', tidy)
for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, () => process.exit(130))

function tidy() {
  for (const worker of workers.values()) worker.kill('SIGKILL')
  rmSync(folder, { recursive: true, force: true })
}

function row(holder, mark, note) {
  const lanes = NAMES.map((name) =>
    name === holder
      ? paint(mark === 'x' ? 'red' : 'green', mark.padEnd(6))
      : name === killed
        ? '      '
        : paint('gray', '·     '),
  )
  say(`  ${((performance.now() - began) / 1_000).toFixed(1).padStart(5)} s   ${lanes.join('')} ${note}`)
}

function onMessage(name, { holds, token }) {
  if (!holds) {
    finished++
    if (killedAt && finished >= TURNS_BEFORE_THE_KILL + TURNS_AFTER_IT) end()
    return
  }
  const grew = tokens.length === 0 || BigInt(token) > BigInt(tokens.at(-1))
  tokens.push(token)
  if (killedAt && gap === undefined) gap = performance.now() - killedAt
  row(name, '█', `token ${token}${grew ? '' : paint('red', '  NOT LARGER')}`)
  if (finished >= TURNS_BEFORE_THE_KILL && !killedAt) setTimeout(() => strike(name), 100)
}

function strike(name) {
  workers.get(name).kill('SIGKILL')
  workers.delete(name)
  killedAt = performance.now()
  killed = name
  interrupted++
  row(name, 'x', `kill -9 while holding the lock; its lease runs out within 2 s, then the next one goes on`)
}

function end() {
  const counted = Number(readFileSync(counter, 'utf8'))
  const grew = tokens.every((token, i) => i === 0 || BigInt(token) > BigInt(tokens[i - 1]))
  const right = counted === finished && grew
  say()
  say(
    `  ${finished} turns finished, ${interrupted} cut off; the unprotected counter says ${counted}${counted === finished ? ': none lost' : ''}.`,
  )
  say(`  ${tokens.length} fencing tokens, ${grew ? 'each larger than the one before' : 'NOT in order'}.`)
  say(`  After the kill the lock moved on by itself in ${(gap / 1_000).toFixed(1)} s.`)
  say()
  say(paint('bold', '  Try next'))
  say('    node dist/cli/main.js run backup -- sh -c "echo only one of us; sleep 5"     (in two terminals)')
  say('    node dist/cli/main.js ls                                                     (who holds what)')
  say(
    '    npm test                                                                     (the same on real servers, with real faults)',
  )
  process.exit(right ? 0 : 1)
}

say(paint('bold', 'leasehold: four processes, one lock, one SQLite file, no server'))
say()
say(`      time   ${NAMES.map((name) => name.padEnd(6)).join('')}`)
writeFileSync(counter, '0')
const script = fileURLToPath(new URL('worker.mjs', import.meta.url))
for (const name of NAMES) {
  const worker = fork(script, [join(folder, 'locks.db'), counter], { stdio: ['ignore', 'ignore', 'inherit', 'ipc'] })
  workers.set(name, worker)
  worker.on('message', (message) => onMessage(name, message))
  worker.on('exit', (code) => {
    if (code === null || !workers.has(name)) return
    console.error(`${name} ended by itself with status ${code}`)
    process.exit(1)
  })
}
// Whatever happens, it ends.
setTimeout(() => {
  console.error('The story did not come to its end within a minute.')
  process.exit(1)
}, 60_000).unref()
