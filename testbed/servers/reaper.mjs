// Runs the servers of one test process and outlives it: when the pipe on stdin closes, for whatever reason the other end
// died (kill -9 included), every server is killed and every directory removed. A process of its own, because exit handlers
// do not run on SIGKILL; plain JavaScript, because it must start in milliseconds.
//
// stdin, one JSON request a line:   { id, do: 'dir', prefix, uid?, gid? }                    → { id, dir }
//                                   { id, do: 'spawn', dir, argv, log, uid?, gid?, env? }    → { id, pid }, later { exited: pid, code, signal }
//                                   { id, do: 'signal', pid, signal }                        → { id } when the whole family has it
//                                   { id, do: 'remove', dir }                                → { id } when all its processes and the directory are gone
// A request that failed answers { id, error }.
import { spawn, spawnSync } from 'node:child_process'
import { chownSync, closeSync, mkdtempSync, openSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'

/** directory → pids of the servers started in it that are still alive */
const processesOf = new Map()

function say(message) {
  process.stdout.write(`${JSON.stringify(message)}\n`)
}

/** { state, parent } from /proc, or undefined if the process is gone. */
function statOf(pid) {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
    const [state, parent] = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
    return { state, parent: Number(parent) }
  } catch {
    return undefined
  }
}

// The backends of PostgreSQL are sessions of their own, so a process group does not include them.
function descendantsOf(pid) {
  const parents = new Map(
    readdirSync('/proc').flatMap((entry) => (/^\d+$/.test(entry) ? [[Number(entry), statOf(entry)?.parent]] : [])),
  )
  const family = new Set([pid])
  for (let size = 0; size < family.size; ) {
    size = family.size
    for (const [child, parent] of parents) if (family.has(parent)) family.add(child)
  }
  family.delete(pid)
  return [...family]
}

function send(pid, signal) {
  try {
    process.kill(pid, signal)
  } catch (error) {
    if (error.code !== 'ESRCH') throw error
  }
}

async function until(condition) {
  for (let waited = 0; !condition() && waited < 10_000; waited += 5) await sleep(5)
}

const isDead = (pid) => ['Z', 'X', undefined].includes(statOf(pid)?.state)
const isStopped = (pid) => isDead(pid) || ['T', 't'].includes(statOf(pid)?.state)

/** Stops all of them, parents first: a running parent could fork a child that the list misses. */
async function stopFamily(pid) {
  const family = new Set()
  for (let found = [pid]; found.length > 0; found = descendantsOf(pid).filter((each) => !family.has(each))) {
    for (const member of found) {
      send(member, 'SIGSTOP')
      family.add(member)
    }
    await until(() => found.every(isStopped))
  }
  return [...family]
}

async function signalFamily(pid, signal) {
  if (signal === 'SIGSTOP') return void (await stopFamily(pid))
  if (signal === 'SIGKILL') {
    const family = await stopFamily(pid)
    for (const member of family) send(member, signal)
    return until(() => family.every(isDead))
  }
  if (signal === 'SIGCONT') for (const member of descendantsOf(pid)) send(member, signal)
  send(pid, signal)
}

// A killed postmaster leaves its System V segment behind. Only a restart in the same directory would remove it.
function removeSharedMemory(dir) {
  try {
    const segment = readFileSync(join(dir, 'data', 'postmaster.pid'), 'utf8')
      .split('\n')[6]
      ?.trim()
      .split(/\s+/)[1]
    if (segment) spawnSync('ipcrm', ['-m', segment], { stdio: 'ignore' })
  } catch {
    // No PostgreSQL here, or one that was shut down properly.
  }
}

async function remove(dir) {
  await Promise.all([...(processesOf.get(dir) ?? [])].map((pid) => signalFamily(pid, 'SIGKILL')))
  removeSharedMemory(dir)
  rmSync(dir, { recursive: true, force: true, maxRetries: 20, retryDelay: 20 })
  processesOf.delete(dir)
}

const requests = {
  dir({ prefix, uid, gid }) {
    const dir = mkdtempSync(join(tmpdir(), prefix))
    processesOf.set(dir, new Set())
    if (uid !== undefined) chownSync(dir, uid, gid)
    return { dir }
  },
  async spawn({ dir, argv, log, uid, gid, env }) {
    const output = openSync(join(dir, log), 'a')
    // detached: a Ctrl-C in the terminal is for the tests, which may still need their servers to clean up.
    const child = spawn(argv[0], argv.slice(1), {
      cwd: dir,
      detached: true,
      env: { ...process.env, ...env },
      stdio: ['ignore', output, output],
      ...(uid === undefined ? {} : { uid, gid }),
    })
    closeSync(output)
    const { pid } = child
    if (pid !== undefined) processesOf.get(dir)?.add(pid)
    child.on('exit', (code, signal) => {
      processesOf.get(dir)?.delete(pid)
      say({ exited: pid, code, signal })
    })
    await new Promise((resolve, reject) => child.once('spawn', resolve).once('error', reject))
    return { pid }
  },
  async signal({ pid, signal }) {
    await signalFamily(pid, signal)
    return {}
  },
  async remove({ dir }) {
    await remove(dir)
    return {}
  },
}

process.stdout.on('error', () => {})
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => {})

async function reap() {
  await Promise.allSettled([...processesOf.keys()].map(remove))
  process.exit()
}

// A worker of a test runner survives when the runner is killed, and no process reads its results any more. The parent
// of the worker is passed only if the process is a worker (see reaper.ts); any other process may outlive the shell that
// started it.
const worker = process.ppid
const runner = Number(process.argv[2])
if (runner) {
  setInterval(() => {
    if (statOf(worker)?.parent !== runner) void reap()
  }, 500)
}

const lines = createInterface({ input: process.stdin })
lines.on('line', (line) => void answer(JSON.parse(line)))
lines.on('close', () => void reap())

async function answer(request) {
  try {
    say({ id: request.id, ...(await requests[request.do](request)) })
  } catch (error) {
    say({ id: request.id, error: String(error) })
  }
}
