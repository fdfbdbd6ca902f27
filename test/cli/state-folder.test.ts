import {
  chmodSync,
  chownSync,
  mkdirSync,
  readdirSync,
  realpathSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { dirname, join } from 'node:path'
import { expect, test } from 'vitest'
import { type UserAccount, defaultFile } from '../../src/cli/state-folder.js'
import { CliFixture } from './harness.js'

const fixture = new CliFixture()
const uid = process.geteuid?.() as number
const gid = process.getegid?.() as number
let homes = 0

test('without --store, locks are kept in the state directory of the user, and no other user can read them', async () => {
  const state = fixture.path('my state %')
  const env = { LEASEHOLD_STORE: '', XDG_STATE_HOME: state }
  const { code, stderr } = await fixture.start([...fixture.program, 'run', 'anything', '--', 'true'], env).ended
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' })
  expect(modeOf(join(state, 'leasehold'))).toBe(0o700)
  expect(modeOf(join(state, 'leasehold', 'locks.db'))).toBe(0o600)
})

test('a folder to which others may write is refused with 69 and the command that helps', async () => {
  const home = newHome()
  const folder = join(home, '.local/state/leasehold')
  mkdirSync(folder, { recursive: true })
  chmodSync(folder, 0o777)
  const env = { LEASEHOLD_STORE: '', XDG_STATE_HOME: '', HOME: home }
  const { code, stderr } = await fixture.start([...fixture.program, 'run', 'anything', '--', 'true'], env).ended
  expect(stderr).toContain(`others may write to it: look what is in it, then run: chmod 700 ${realpathSync(folder)}`)
  expect(code).toBe(69)
})

test('a file that cannot be made is an outage with a reason, not a lost lock', async () => {
  // The path of the folder is short enough for the kernel, that of the file in it is not. Root is refused, too.
  const MOST = 4_095
  let state = newHome()
  while (MOST - state.length > 262) state = join(state, 'x'.repeat(250))
  const rest = MOST - state.length - '/leasehold'.length - 1
  state = join(state, 'y'.repeat(rest))
  const env = { LEASEHOLD_STORE: '', XDG_STATE_HOME: state }
  const { code, stderr } = await fixture.start([...fixture.program, 'run', 'anything', '--', 'true'], env).ended
  expect(stderr).toContain('leasehold, where locks are kept by default, cannot be used\n')
  expect(stderr).toContain('ENAMETOOLONG')
  expect(stderr).not.toContain(' at ')
  expect(code).toBe(69)
})

test('a folder and a file that others may only read are closed to them', () => {
  const home = newHome()
  const file = defaultFile(asker(home))
  writeFileSync(file, '')
  chmodSync(dirname(file), 0o755)
  chmodSync(file, 0o644)
  expect(defaultFile(asker(home))).toBe(file)
  expect([modeOf(dirname(file)), modeOf(file)]).toEqual([0o700, 0o600])
})

test('a folder above, in which others could replace ours, is refused unless it is sticky', () => {
  const home = newHome()
  chmodSync(home, 0o777)
  expect(() => defaultFile(asker(home))).toThrow(`others may write to it: run: chmod go-w ${home}`)
  chmodSync(home, 0o1777)
  expect(defaultFile(asker(home))).toBe(join(home, '.local/state/leasehold/locks.db'))
})

test('a folder or a link that another user has planted is refused', () => {
  const state = newHome()
  const { owner, ...other } = foreign(state)
  expect(() => defaultFile({ ...other, env: { XDG_STATE_HOME: state } })).toThrow(
    `it belongs to another user (${owner})`,
  )
  expect(readdirSync(state)).toEqual([])
  const home = newHome()
  mkdirSync(join(home, '.local/state'), { recursive: true })
  const target = newHome()
  symlinkSync(target, join(home, '.local/state/leasehold'))
  chmodSync(target, 0o777)
  expect(() => defaultFile(asker(home))).toThrow('others may write to it')
  chmodSync(target, 0o700)
  expect(defaultFile(asker(home))).toBe(join(target, 'locks.db'))
})

test('a link instead of the file is refused: SQLite would follow it', () => {
  const home = newHome()
  const file = join(home, '.local/state/leasehold/locks.db')
  mkdirSync(dirname(file), { recursive: true, mode: 0o700 })
  symlinkSync(fixture.path('somewhere-else'), file)
  expect(() => defaultFile(asker(home))).toThrow('it is not a file: remove it')
  expect(fixture.exists('somewhere-else')).toBe(false)
})

test('with the HOME of another user, as sudo may leave it, locks are kept in the own home', () => {
  const [theirs, own] = [newHome(), newHome()]
  const { owner: _, ...root } = foreign(theirs)
  try {
    defaultFile({ ...root, env: { HOME: theirs }, ownHome: () => own })
  } catch {
    // Where the test itself is not root, what it makes is a stranger's to the one it plays.
  }
  expect(readdirSync(theirs)).toEqual([])
  expect(readdirSync(own)).toEqual(uid === 0 ? ['.local'] : [])
})

/** An account for which this folder belongs to another user: root changes the owner, other users pretend to be another one. */
function foreign(folder: string): UserAccount & { owner: number } {
  if (uid !== 0) return { ...asker(folder), uid: uid + 1, owner: uid }
  chownSync(folder, 4_242, 4_242)
  return { ...asker(folder), owner: 4_242 }
}

function asker(home: string): UserAccount {
  return { env: { HOME: home }, uid, gid, ownHome: () => home }
}

function newHome(): string {
  const home = join(realpathSync(fixture.folder), `home-${homes++}`)
  mkdirSync(home, { mode: 0o700 })
  return home
}

function modeOf(path: string): number {
  return statSync(path).mode & 0o777
}
