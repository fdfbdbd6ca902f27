/** The structure of the tree: which folder may import which, no cycle in the core, one meaning per type name. */
import { fileURLToPath } from 'node:url'
import { expect, test } from 'vitest'
import { cyclesIn, homonymsIn, importGraph, importsOf, sourcesIn } from '../../scripts/source-graph.mjs'

const ROOT = fileURLToPath(new URL('../..', import.meta.url))
const SRC = fileURLToPath(new URL('../../src', import.meta.url))

/** The layer of a file in src: its folder, or for stores the folder of its store. */
function layerOf(file: string): string {
  const [first = '', second = ''] = file.split('/')
  if (first === 'stores') return `stores/${second}`
  return file.includes('/') ? first : file
}

/** What each layer of src may import, besides itself. */
function mayImport(layer: string): RegExp {
  if (layer.startsWith('stores/')) return /^(store\.ts|errors\.ts|util|clients)$/
  switch (layer) {
    case 'store.ts':
      return /^$/
    case 'errors.ts':
      return /^util$/
    case 'util':
      return /^(store\.ts|errors\.ts)$/
    case 'clients':
      return /^(errors\.ts|util)$/
    case 'core':
      return /^(store\.ts|errors\.ts|util)$/
    case 'primitives':
      return /^(store\.ts|errors\.ts|util|core|locks\.ts|stores\/memory)$/
    case 'locks.ts':
      return /^(store\.ts|errors\.ts|util|core|primitives)$/
    case 'testing':
      return /^(store\.ts|errors\.ts|util|locks\.ts|core|index\.ts|stores\/memory)$/
    default:
      return /./ // the outermost: index.ts, open-store.ts, cli, http, dashboard
  }
}

/** The folders of the tree, from the inside out: a folder imports itself and those before it. */
const FOLDERS = ['src', 'testbed', 'scripts', 'bench', 'verify', 'test']

/** The imports of a file that leave its folder for one that comes later in FOLDERS. */
function outward(source: { file: string; text: string }): string[] {
  const rank = (path: string): number => FOLDERS.indexOf(path.split('/')[0] as string)
  return importsOf(source)
    .filter((target) => rank(target) > rank(source.file))
    .map((target) => `${source.file} → ${target}`)
}

test('imports inside src point one way: cli → primitives → core → store.ts ← stores', () => {
  const all = sourcesIn(SRC).flatMap((source) => importsOf(source).map((to) => ({ from: source.file, to })))
  expect(all.length).toBeGreaterThan(50)
  const wrong = all.filter(({ from, to }) => {
    const [own, other] = [layerOf(from), layerOf(to)]
    return own !== other && !mayImport(own).test(other)
  })
  expect(wrong).toEqual([])
})

test('the check of imports inside src detects a wrong import', () => {
  expect(mayImport(layerOf('stores/redis/index.ts')).test(layerOf('stores/redlock/index.ts'))).toBe(false)
  expect(mayImport(layerOf('core/lease.ts')).test(layerOf('primitives/lock.ts'))).toBe(false)
})

test('imports between folders point one way: test → verify → bench → scripts → testbed → src', () => {
  const files = FOLDERS.flatMap((folder) => sourcesIn(ROOT, folder, /\.m?[jt]s$/))
  expect(files.length).toBeGreaterThan(300)
  expect(files.flatMap(outward).sort()).toEqual([])
})

test('the check of imports between folders detects a wrong import', () => {
  const source = { file: 'testbed/servers/redis.ts', text: "import { x } from '../../test/core/x.js'" }
  expect(outward(source)).toEqual(['testbed/servers/redis.ts → test/core/x.ts'])
  expect(outward({ ...source, file: 'test/servers/redis.ts' })).toEqual([])
})

test('no two files of src export a type of the same name', () => {
  const found = homonymsIn(sourcesIn(SRC), { exported: true })
  expect(found).toEqual([])
})

test('the check of type names detects a second export of a name', () => {
  const files = ['a.ts', 'b.ts'].map((file) => ({ file, text: 'export interface Twin {}\ninterface Local {}\n' }))
  expect(homonymsIn(files, { exported: true })).toEqual([{ name: 'Twin', files: ['a.ts', 'b.ts'] }])
})

test('no file of the core imports itself through others, types included', () => {
  const files = sourcesIn(SRC, 'core')
  expect(files.length).toBeGreaterThan(10)
  expect(cyclesIn(importGraph(files))).toEqual([])
})

test('the check of cycles detects a cycle of type imports', () => {
  const text = (to: string): string => `import type { X } from './${to}.js'`
  const files = [
    { file: 'core/a.ts', text: text('b') },
    { file: 'core/b.ts', text: text('c') },
    { file: 'core/c.ts', text: text('a') },
    { file: 'core/d.ts', text: text('a') },
  ]
  expect(cyclesIn(importGraph(files))).toEqual([['core/a.ts', 'core/b.ts', 'core/c.ts']])
})

test('no file imports a database client at its top, so that no backend requires the client of another', () => {
  const clients = /^import (?!type).*from '(ioredis|redis|pg|postgres|@photostructure\/sqlite|node:sqlite)'/m
  const importing = sourcesIn(SRC).filter(({ text }) => clients.test(text))
  expect(importing.map(({ file }) => file)).toEqual([])
})
