import { readdirSync, readFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'
import { expect, test } from 'vitest'

const SRC = fileURLToPath(new URL('../../src', import.meta.url))

/** Which layer a file is in: its folder, or for stores the folder of its store. */
function layerOf(file: string): string {
  const [first = '', second = ''] = file.split('/')
  if (first === 'stores') return `stores/${second}`
  return file.includes('/') ? first : file
}

/** What each layer may import, besides itself. */
function mayImport(layer: string): RegExp {
  if (layer.startsWith('stores/')) return /^(store\.ts|errors\.ts|util|kit|clients)$/
  switch (layer) {
    case 'store.ts':
      return /^$/
    case 'errors.ts':
      return /^util$/
    case 'util':
      return /^errors\.ts$/
    case 'kit':
      return /^(store\.ts|errors\.ts|util)$/
    case 'clients':
      return /^(errors\.ts|util|kit)$/
    case 'core':
      return /^(store\.ts|errors\.ts|util|kit)$/
    case 'primitives':
      return /^(store\.ts|errors\.ts|util|kit|core|locks\.ts|stores\/memory)$/
    case 'locks.ts':
      return /^(store\.ts|errors\.ts|util|kit|core|primitives)$/
    case 'testing':
      return /^(store\.ts|errors\.ts|util|kit|locks\.ts|core|index\.ts|stores\/memory)$/
    default:
      return /./ // the outermost: index.ts, open-store.ts, cli, http, dashboard
  }
}

function imports(): { from: string; to: string }[] {
  const files = readdirSync(SRC, { recursive: true, encoding: 'utf8' }).filter((file) => file.endsWith('.ts'))
  return files.flatMap((from) => {
    const text = readFileSync(join(SRC, from), 'utf8')
    return [...text.matchAll(/(?:from|import)\s*\(?\s*'(\.[^']+)'/g)].map(([, path]) => {
      const to = relative(SRC, join(SRC, dirname(from), path as string)).replace(/\.js$/, '.ts')
      return { from, to }
    })
  })
}

test('dependencies point one way: cli → primitives → core → store.ts ← stores', () => {
  const all = imports()
  expect(all.length).toBeGreaterThan(50)
  const wrong = all.filter(({ from, to }) => {
    const [own, other] = [layerOf(from), layerOf(to)]
    return own !== other && !mayImport(own).test(other)
  })
  expect(wrong).toEqual([])
})

test('the walk can tell a wrong import', () => {
  expect(mayImport(layerOf('stores/redis/index.ts')).test(layerOf('stores/redlock/index.ts'))).toBe(false)
  expect(mayImport(layerOf('core/lease.ts')).test(layerOf('primitives/lock.ts'))).toBe(false)
})

test('no database client is imported at the top of a file: one backend never requires another one’s client', () => {
  const files = readdirSync(SRC, { recursive: true, encoding: 'utf8' }).filter((file) => file.endsWith('.ts'))
  const clients = /^import (?!type).*from '(ioredis|redis|pg|postgres|@photostructure\/sqlite|node:sqlite)'/m
  expect(files.filter((file) => clients.test(readFileSync(join(SRC, file), 'utf8')))).toEqual([])
})
