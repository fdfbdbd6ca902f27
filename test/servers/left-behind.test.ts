import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readdirSync, readFileSync, readlinkSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { afterEach, expect, test } from 'vitest'
import { startPostgres, startRedis } from '../../testbed/servers/index.js'
import { until } from '../../testbed/servers/process.js'
import { program } from '../../testbed/programs.js'

interface Started {
  pid: number
  dir: string
}

/** Processes whose working directory is this directory or below it: every server runs in its own. */
function processesIn(dir: string): string[] {
  return readdirSync('/proc').filter((entry) => {
    try {
      return /^\d+$/.test(entry) && readlinkSync(`/proc/${entry}/cwd`).startsWith(dir)
    } catch {
      return false
    }
  })
}

/** Ids of the System V segments that this process created: a killed PostgreSQL leaves one. */
function sharedMemoryOf(pid: number): string[] {
  const [, ...rows] = readFileSync('/proc/sysvipc/shm', 'utf8').trim().split('\n')
  const columns = rows.map((row) => row.trim().split(/\s+/))
  return columns.filter((column) => Number(column[4]) === pid).map((column) => column[1] as string)
}

const isAlive = (pid: number): boolean => {
  try {
    return !/^State:\s+[ZX]/m.test(readFileSync(`/proc/${pid}/status`, 'utf8'))
  } catch {
    return false
  }
}

const owners: ChildProcess[] = []
afterEach(() => {
  for (const owner of owners.splice(0)) owner.kill('SIGKILL')
})

async function startOrphans(): Promise<{ owner: ChildProcess; servers: Started[] }> {
  const script = program(new URL('./orphan.ts', import.meta.url))
  const owner = spawn(process.execPath, [script], { stdio: ['ignore', 'pipe', 'inherit'] })
  owners.push(owner)
  const [line] = (await once(createInterface({ input: owner.stdout }), 'line')) as [string]
  return { owner, servers: JSON.parse(line) as Started[] }
}

test.each(['SIGKILL', 'SIGINT'] as const)(
  'servers of a process that dies of %s are removed with it, even frozen ones',
  async (signal) => {
    const { owner, servers } = await startOrphans()
    expect(servers.map(({ pid, dir }) => isAlive(pid) && existsSync(dir) && processesIn(dir).length > 0)).toEqual([
      true,
      true,
      true,
    ])
    const postgres = servers[2] as Started
    expect(sharedMemoryOf(postgres.pid)).toHaveLength(1)

    owner.kill(signal)
    await once(owner, 'exit')

    for (const { pid, dir } of servers) {
      await until(
        `process ${pid} and ${dir} are gone`,
        () => !isAlive(pid) && !existsSync(dir) && processesIn(dir).length === 0,
        30_000,
      )
    }
    expect(sharedMemoryOf(postgres.pid)).toEqual([])
  },
)

test('a stopped server leaves no process, directory, shared memory or reservation of its port', async () => {
  const redis = await startRedis()
  const postgres = await startPostgres()
  const postgresPid = postgres.pid
  await postgres.kill()
  expect(sharedMemoryOf(postgresPid), 'kill -9 leaves a segment, or this test shows nothing').toHaveLength(1)
  const pid = redis.pid
  await Promise.all([redis.stop(), postgres.stop()])
  expect([isAlive(pid), existsSync(redis.dir), existsSync(postgres.dir)]).toEqual([false, false, false])
  expect(processesIn(postgres.dir)).toEqual([])
  expect(sharedMemoryOf(postgresPid)).toEqual([])
  const next = await startRedis({ port: redis.port })
  expect(next.port).toBe(redis.port)
  await next.stop()
})
