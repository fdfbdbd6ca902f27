import { strict as assert } from 'node:assert'
import { InvalidOptionError } from '../../errors.js'
import type { Store } from '../../store.js'
import { granted, mustRelease, refused, renew } from '../store-calls.js'
import type { Case } from '../case.js'

/** Names that have broken a key, a pattern, a script or a statement in some store. */
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

/** Pairs of names that a careless store confuses. */
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

/**
 * Whether the store accepts the key. Rejecting it beforehand, by `InvalidOptionError`, is the documented way to
 * decline.
 */
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
    name: 'a name may contain anything but NUL: patterns, quotes, braces, control characters, any script',
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
        await mustRelease(a, lease)
        await granted(b, t.claim(key))
      }
      assert.ok(carried >= oddNames.length / 2, 'most of them are accepted')
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
        await mustRelease(a, first)
      }
    },
  },
  {
    name: 'names of 255 characters work, and differ by their last character',
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
        await mustRelease(a, lease)
      }
    },
  },
  {
    name: 'a key always has the same partition, and a key that the store cannot represent is rejected by name',
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
