/** The projects into which people install the package, as they would write them on their first day. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { ROOT } from '../../testbed/programs.js'

/** A program that comes from npm: where to find it once installed. */
export interface Runtime {
  packages: Record<string, string>
  /** Below node_modules; the first that exists. */
  binaries: readonly string[]
}

export interface Project {
  name: string
  /** Besides leasehold itself and ioredis. */
  packages: Record<string, string>
  files: Record<string, string>
  /** Run one after the other; `node` stands for the project's run-time, other names for programs in node_modules/.bin. */
  steps: readonly (readonly string[])[]
  env?: Record<string, string>
  /** Without it: the Node that runs this. */
  runtime?: Runtime
}

const { platform, arch } = process

export const runtimes: Record<'node22' | 'node24' | 'bun' | 'deno', Runtime> = {
  node22: nodeRuntime('22'),
  node24: nodeRuntime('24'),
  bun: { packages: { bun: '1' }, binaries: [`@oven/bun-${platform}-${arch}/bin/bun`, 'bun/bin/bun.exe'] },
  deno: {
    packages: { deno: '2' },
    binaries: [`@deno/${platform}-${arch}-glibc/deno`, `@deno/${platform}-${arch}/deno`],
  },
}

function nodeRuntime(version: string): Runtime {
  const name = `node-${platform}-${arch}`
  return { packages: { [name]: version }, binaries: [`${name}/bin/node`] }
}

/** The README's first example, which a new user copies first. */
export function firstScreen(): { imports: string; body: string } {
  const readme = readFileSync(join(ROOT, 'README.md'), 'utf8')
  const code = /```ts\n(.*?)```/s.exec(readme)?.[1]
  if (!code) throw new Error('the README has no first example')
  const lines = code.split('\n')
  const isImport = (line: string): boolean => line.startsWith('import ')
  return { imports: lines.filter(isImport).join('\n'), body: lines.filter((line) => !isImport(line)).join('\n') }
}

const REDIS = {
  imports: `import { Redis } from 'ioredis'
import { createLocks, LockTimeoutError, openLocks } from 'leasehold'
import { redis } from 'leasehold/redis'`,
  body: `  const client = new Redis(process.env['REDIS_URL'] ?? '')
  const locks = createLocks(redis(client), { namespace: 'newcomer' })
  await locks.withLock('a', async (lock) => {
    const other = await openLocks(process.env['REDIS_URL'] ?? '', { namespace: 'newcomer' })
    const error = await other.acquire('a', { wait: 500 }).catch((reason) => reason)
    if (!(error instanceof LockTimeoutError)) throw new Error('it was not excluded: ' + error)
    await other.close()
    console.log('a lock on Redis:', typeof lock.fencingToken)
  })
  await locks.close()
  client.disconnect()
`,
}

/** \`import { a } from 'b'\` as \`const { a } = require('b')\`. */
function asRequire(imports: string): string {
  return imports.replace(/^import (\{.*?\}) from ('.*?')$/gm, 'const $1 = require($2)')
}

/** In a function, for module systems without await at the top. */
function inMain({ imports, body }: { imports: string; body: string }): string {
  return `${imports}\n\nasync function main() {\n${body}}\n\nmain().catch((error) => {\n  console.error(error)\n  process.exit(1)\n})\n`
}

function inTest(title: string, { imports, body }: { imports: string; body: string }): string {
  return `${imports}\n\ntest('${title}', async () => {\n${body}})\n`
}

const screen = firstScreen()
const esm = (program: { imports: string; body: string }): string => `${program.imports}\n\n${program.body}`
const cjs = (program: { imports: string; body: string }): { imports: string; body: string } => ({
  imports: asRequire(program.imports),
  body: program.body,
})

const MODULE = '{ "name": "newcomer", "private": true, "type": "module" }\n'
const COMMONJS = '{ "name": "newcomer", "private": true, "type": "commonjs" }\n'

const tsconfig = (options: object): string =>
  JSON.stringify({ compilerOptions: { strict: true, types: ['node'], outDir: 'out', ...options }, include: ['*.ts'] })

const TYPESCRIPT = { typescript: '5', '@types/node': '20' }

/** As NestJS has it: the decorators of old, in CommonJS. */
const DECORATED = `import { createLocks, locked, memory } from 'leasehold'

const locks = createLocks(memory())

class Billing {
  @locked(locks, (order: string) => \`order:\${order}\`)
  async charge(order: string, amount: number): Promise<string> {
    return \`charged \${amount} for \${order}\`
  }
}

new Billing().charge('7', 100).then(console.log)
`

export const typescriptNodenext: Project = {
  name: 'TypeScript nodenext',
  packages: TYPESCRIPT,
  files: {
    'package.json': MODULE,
    'tsconfig.json': tsconfig({ module: 'nodenext', target: 'es2022', exactOptionalPropertyTypes: true }),
    'screen.ts': esm(screen),
    'redis.ts': esm(REDIS),
  },
  steps: [['tsc'], ['node', 'out/screen.js'], ['node', 'out/redis.js']],
}

export const typescriptCommonjs: Project = {
  name: 'TypeScript node16 CommonJS',
  packages: TYPESCRIPT,
  files: {
    'package.json': COMMONJS,
    'tsconfig.json': tsconfig({ module: 'node16', target: 'es2022', experimentalDecorators: true }),
    'screen.ts': inMain(screen),
    'redis.ts': inMain(REDIS),
    'decorated.ts': DECORATED,
  },
  steps: [['tsc'], ['node', 'out/screen.js'], ['node', 'out/redis.js'], ['node', 'out/decorated.js']],
}

export const jestDefault: Project = {
  name: 'Jest default',
  packages: { jest: '30' },
  files: {
    'package.json': COMMONJS,
    'screen.test.js': inTest('the first screen', cjs(screen)),
    'redis.test.js': inTest('a lock on Redis', cjs(REDIS)),
  },
  steps: [['jest']],
}

export const projects: readonly Project[] = [
  typescriptNodenext,
  typescriptCommonjs,
  {
    name: 'TypeScript CommonJS with node10 resolution, as NestJS has it',
    packages: TYPESCRIPT,
    files: {
      ...typescriptCommonjs.files,
      'tsconfig.json': tsconfig({
        module: 'commonjs',
        moduleResolution: 'node10',
        target: 'es2022',
        experimentalDecorators: true,
      }),
    },
    steps: typescriptCommonjs.steps,
  },
  jestDefault,
  {
    name: 'Jest ESM',
    packages: { jest: '30' },
    files: {
      'package.json': MODULE,
      'screen.test.js': inTest('the first screen', screen),
      'redis.test.js': inTest('a lock on Redis', REDIS),
    },
    steps: [['jest']],
    env: { NODE_OPTIONS: '--experimental-vm-modules' },
  },
  {
    name: 'Vitest',
    packages: { vitest: '3' },
    files: {
      'package.json': MODULE,
      // The cache is inside this repository, whose own configuration would be found otherwise.
      'vitest.config.js': "export default { test: { include: ['*.test.js'], exclude: [] } }\n",
      'screen.test.js': inTest('the first screen', {
        ...screen,
        imports: `import { test } from 'vitest'\n${screen.imports}`,
      }),
      'redis.test.js': inTest('a lock on Redis', {
        ...REDIS,
        imports: `import { test } from 'vitest'\n${REDIS.imports}`,
      }),
    },
    steps: [['vitest', 'run']],
  },
  {
    name: 'esbuild bundle',
    packages: { esbuild: '0.25' },
    files: { 'package.json': COMMONJS, 'screen.js': inMain(cjs(screen)), 'redis.mjs': inMain(REDIS) },
    steps: [
      [
        'esbuild',
        '--bundle',
        '--platform=node',
        '--minify',
        '--outdir=out',
        '--out-extension:.js=.cjs',
        'screen.js',
        'redis.mjs',
      ],
      ['node', 'out/screen.cjs'],
      ['node', 'out/redis.cjs'],
    ],
  },
  {
    name: 'node-redis 5',
    packages: { redis: '5' },
    files: {
      'package.json': MODULE,
      'redis.js': `import { createClient } from 'redis'
import { createLocks, LockTimeoutError } from 'leasehold'
import { redis } from 'leasehold/redis'

const client = createClient({ url: process.env['REDIS_URL'] })
await client.connect()
const [one, two] = [createLocks(redis(client)), createLocks(redis(client))]
const held = await one.acquire('a')
const error = await two.acquire('a', { wait: 500 }).catch((reason) => reason)
if (!(error instanceof LockTimeoutError)) throw new Error('it was not excluded: ' + error)
const waiting = two.acquire('a', { wait: '10s' })
await held.release()
console.log('handed off:', (await waiting).fencingToken > held.fencingToken)
await one.close()
await two.close({ grace: 0 })
client.destroy()
`,
    },
    steps: [['node', 'redis.js']],
  },
  plain('Bun', runtimes.bun, 'run'),
  plain('Deno', runtimes.deno, 'run', '--allow-all'),
  plain('Node 22', runtimes.node22),
  plain('Node 24', runtimes.node24),
]

/** No tool but the run-time: modules of both kinds, and where SQLite is built in, the command line. */
function plain(name: string, runtime: Runtime, ...run: string[]): Project {
  const start = ['node', ...run]
  const isNode = run.length === 0
  const bin = 'node_modules/leasehold/dist/cli/main.js'
  return {
    name,
    packages: {},
    runtime,
    files: {
      'package.json': MODULE,
      'screen.js': esm(screen),
      'redis.js': esm(REDIS),
      'screen.cjs': inMain(cjs(screen)),
      'redis.cjs': inMain(cjs(REDIS)),
      'sqlite.js': `import { openLocks } from 'leasehold'\n\nconst locks = await openLocks('sqlite:./locks.db')\nconsole.log(await locks.withLock('a', (lock) => 'a lock in a file: ' + typeof lock.fencingToken))\nawait locks.close()\n`,
    },
    steps: [
      ...['screen.js', 'redis.js', 'screen.cjs', 'redis.cjs'].map((file) => [...start, file]),
      [...start, 'sqlite.js'],
      ...(isNode
        ? [[...start, bin, 'run', 'backup', '--store', 'sqlite:./cli.db', '--', 'echo', 'ran under a lock']]
        : []),
    ],
  }
}
