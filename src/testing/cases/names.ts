import { strict as assert } from 'node:assert'
import { InvalidOptionError } from '../../errors.js'
import type { Store } from '../../store.js'
import { granted, letGo, refused, renew } from '../ask.js'
import type { Case } from '../case.js'

/** Names that have broken somebody's key, pattern, script or statement. */
const oddNames = [
  ' leading and trailing ',
  'tab\tnewline\nreturn\r',
  `quotes ' " \` and backslash \\`,
  "'; DROP TABLE leases; --",
  '%_*?[a-z]^$|()+',
  '$1 $$ :name @name ?',
  'braces {a}{b} {} }{',
  'slash/../..//.hidden',
  'žluťoučký kůň',
  '漢字かなカナ',
  '🔒👩‍👩‍👧‍👦',
  'عربى‎',
  '\u0001\u001f\u007f',
  'line::fence:line',
  '0',
  '-1',
  '__proto__',
  'constructor',
]

/** Pairs that look alike to a careless store. */
const lookAlikes: [string, string][] = [
  ['a', 'A'],
  ['a', 'a '],
  ['a', ' a'],
  ['\u00e9', 'e\u0301'],
  ['ß', 'ss'],
  ['a', 'a:line'],
  ['a', 'a:fence'],
  ['a', 'a:'],
  ['a:b', 'a/b'],
  ['a_c', 'abc'],
  ['a%', 'ab'],
  ['1', '01'],
  ['x'.repeat(200), `${'x'.repeat(199)}y`],
]

/** Whether the store says beforehand that it cannot carry the key: the documented refusal. */
function carries(store: Store, key: string): boolean {
  try {
    store.partition?.(key)
    return true
  } catch (error) {
    assert.ok(error instanceof InvalidOptionError, `an InvalidOptionError; it was ${error}`)
    return false
  }
}

export const nameCases: Case[] = [
  {
    name: 'a name may hold anything but NUL: patterns, quotes, braces, control characters, any script',
    async run(t) {
      const [a, b] = await t.clients(2)
      let carried = 0
      for (const odd of oddNames) {
        const key = t.key(odd)
        if (!carries(a, key)) continue
        carried++
        const lease = await granted(a, t.claim(key))
        await refused(b, t.claim(key))
        assert.equal(await renew(a, lease, t.longMs), 'ours')
        await letGo(a, lease)
        await granted(b, t.claim(key))
      }
      assert.ok(carried >= oddNames.length / 2, 'most of them are carried')
    },
  },
  {
    name: 'names that look alike are different names',
    async run(t) {
      const [a, b] = await t.clients(2)
      for (const [one, other] of lookAlikes) {
        const base = t.name()
        const first = await granted(a, t.claim(`lock:${base}${one}`))
        await granted(b, t.claim(`lock:${base}${other}`), `${one} is not ${other}`)
        await letGo(a, first)
      }
    },
  },
  {
    name: 'names of 255 characters work, and differ in the last one',
    async run(t) {
      const [a, b] = await t.clients(2)
      for (const filler of ['x', '漢', 'é']) {
        const start = t.name()
        const long = start + filler.repeat(254 - start.length)
        await granted(a, t.claim(`lock:${long}1`))
        await granted(b, t.claim(`lock:${long}2`))
        await refused(b, t.claim(`lock:${long}1`))
      }
    },
  },
  {
    name: 'an owner may be any text',
    async run(t) {
      const [a, b] = await t.clients(2)
      for (const odd of [...oddNames, 'x'.repeat(150)]) {
        const key = t.key()
        const lease = await granted(a, t.claim(key, { owner: t.owner(odd) }))
        await refused(b, t.claim(key, { owner: t.owner(odd) }))
        assert.equal(await renew(a, lease, t.longMs), 'ours')
        await letGo(a, lease)
      }
    },
  },
  {
    name: 'a key always lies in the same partition, and one that cannot be carried is refused by name',
    async run(t) {
      const [a, b] = await t.clients(2)
      for (const odd of ['', ...oddNames]) {
        const key = t.key(odd)
        assert.equal(carries(a, key), carries(b, key))
        if (!carries(a, key)) continue
        const [first, second] = [a.partition?.(key), b.partition?.(key)]
        assert.equal(first, second)
        assert.ok(['string', 'number', 'undefined'].includes(typeof first))
      }
    },
  },
]
