import { type Command, type Input, UsageError } from '../command.js'
import { exitCode } from '../exit-codes.js'
import { print, say } from '../output.js'
import { storeOption, storeUrl } from '../stores.js'

export const migrate: Command = {
  usage: '[options]',
  summary: 'creates or updates the tables of leasehold in PostgreSQL',
  about: `
Any number of processes may run it at once. Stops and explains if the database has a relation distributed_locks or a
function acquire_lock that is not ours; --adopt takes their rows over.`,
  options: {
    print: { help: 'show the SQL instead of running it, for those who have their own migrations' },
    schema: { value: 'NAME', help: 'the schema to put them in (default: the one in the URL, ?schema=…, else public)' },
    adopt: { help: 'take over a distributed_locks that is already there' },
    definer: { help: 'functions run with the rights of their owner: roles need USAGE on the schema, and no table' },
    ...storeOption,
  },
  examples: [
    ['leasehold migrate --store postgres://db/shop', 'apply it'],
    ['leasehold migrate --print > leasehold.sql', 'or keep it with your own migrations'],
  ],
  run: migrateDatabase,
}

async function migrateDatabase(input: Input): Promise<number> {
  input.none('migrate')
  const url = storeUrl(input) ?? ''
  const isPostgres = /^postgres(ql)?:/.test(url)
  const { parseUrl } = await import('../../stores/postgres/open.js')
  const { openClient } = await import('../../clients/postgres/open.js')
  // The store would look for its tables in the schema that its URL names.
  const named = isPostgres ? parseUrl(url) : { connection: url }
  const schema = input.value('schema') || named.schema || 'public'
  const options = { schema, adopt: input.has('adopt'), ...(input.has('definer') ? { definer: true } : {}) }
  const postgres = await import('../../stores/postgres/index.js')
  if (input.has('print')) {
    print(postgres.migrationSql(options))
    return exitCode.ok
  }
  if (!isPostgres) {
    throw new UsageError('migrate is for PostgreSQL: name the database with --store postgres://…, or use --print')
  }
  const { client, close } = await openClient(named.connection)
  try {
    const changed = await postgres.migrate(client, options)
    say(changed ? `the schema "${schema}" is up to date now` : `the schema "${schema}" was up to date already`)
    return exitCode.ok
  } finally {
    await close()
  }
}
