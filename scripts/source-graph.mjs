// What the sources import and declare, by their text: used by npm run figures and by test/package/architecture.test.ts.
import { readdirSync, readFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'

const isGenerated = (file) => file.endsWith('embedded.ts')

/** Every source file below a folder, with its text and its path relative to `root`. Generated files are left out. */
export function sourcesIn(root, folder = '.', pattern = /\.ts$/) {
  return readdirSync(join(root, folder), { recursive: true, encoding: 'utf8' })
    .map((file) => join(folder, file))
    .filter((file) => pattern.test(file) && !/(^|\/)node_modules\//.test(file) && !isGenerated(file))
    .sort()
    .map((file) => ({ file, text: readFileSync(join(root, file), 'utf8') }))
}

/** The relative imports of a file, types included, as paths relative to the same root as `file`. */
export function importsOf({ file, text }) {
  return [...text.matchAll(/(?:from|import)\s*\(?\s*'(\.[^']+)'/g)].map(([, path]) =>
    relative('.', join(dirname(file), path))
      .replace(/\.js$/, '.ts')
      .replace(/\.mjs$/, file.endsWith('.mts') ? '.mts' : '.mjs'),
  )
}

/** File → the given files that it imports, types included. */
export function importGraph(files) {
  const known = new Set(files.map(({ file }) => file))
  return new Map(files.map((each) => [each.file, new Set(importsOf(each).filter((target) => known.has(target)))]))
}

/** Cycles of imports: strongly connected components of two files or more (Tarjan). */
export function cyclesIn(graph) {
  const state = new Map()
  const stack = []
  const found = []
  let counter = 0
  const visit = (node) => {
    const own = { index: counter, low: counter++, onStack: true }
    state.set(node, own)
    stack.push(node)
    for (const next of graph.get(node)) {
      const other = state.get(next) ?? visit(next)
      if (other.onStack) own.low = Math.min(own.low, other.low)
    }
    if (own.low === own.index) {
      const group = stack.splice(stack.indexOf(node))
      for (const member of group) state.get(member).onStack = false
      if (group.length > 1) found.push(group.sort())
    }
    return own
  }
  for (const node of graph.keys()) if (!state.has(node)) visit(node)
  return found
}

/** Type names that are declared at the top level of more than one file. */
export function homonymsIn(files, { exported = false } = {}) {
  const declaration = exported
    ? /^export (?:abstract )?(?:class|interface|type) (\w+)/gm
    : /^(?:export )?(?:abstract )?(?:class|interface|type) (\w+)/gm
  const places = new Map()
  for (const { file, text } of files) {
    for (const [, name] of text.matchAll(declaration)) {
      places.set(name, new Set([...(places.get(name) ?? []), file]))
    }
  }
  return [...places].filter(([, where]) => where.size > 1).map(([name, where]) => ({ name, files: [...where] }))
}
