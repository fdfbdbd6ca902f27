import { type Sources, sources } from '../../../src/stores/postgres/migrate.js'

/** One small mistake in the SQL, which a case of the conformance kit is there to notice. */
export interface SqlMutant {
  what: string
  changes: { file: keyof Sources; find: string; replace: string }[]
  caughtBy: string
}

export const mutants: SqlMutant[] = [
  {
    what: 'a release does not look at the owner',
    changes: [
      {
        file: 'release',
        find: 'where key = p_key and owner = p_owner and expires_at > v_now and (p_token',
        replace: 'where key = p_key and owner is not null and expires_at > v_now and (p_token',
      },
    ],
    caughtBy: "a stranger's release is gone and frees nothing",
  },
  {
    what: 'a renewal does not look at the owner',
    changes: [
      {
        file: 'renew',
        find: 'where key = p_key and owner = p_owner and expires_at > clock_timestamp() and (p_token',
        replace: 'where key = p_key and owner is not null and expires_at > clock_timestamp() and (p_token',
      },
    ],
    caughtBy: "a stranger's renewal is gone and prolongs nothing",
  },
  {
    what: 'a renewal creates',
    changes: [
      {
        file: 'renew',
        find: "'1 millisecond'), value = coalesce(p_value, value)\n  where key = p_key and owner = p_owner and expires_at > clock_timestamp() and (p_token is null or token = p_token);",
        replace:
          "'1 millisecond'), owner = p_owner, value = coalesce(p_value, value)\n  where key = p_key and slot = 0 and (owner is null or owner = p_owner or expires_at <= clock_timestamp());",
      },
    ],
    caughtBy: 'the renewal of a released lease is gone and creates nothing',
  },
  {
    what: 'a renewal shortens',
    changes: [
      {
        file: 'renew',
        find: 'greatest(expires_at, clock_timestamp() + p_ttl_ms',
        replace: "least(now() + interval '1 year', clock_timestamp() + p_ttl_ms",
      },
    ],
    caughtBy: 'a renewal never shortens: one that arrives late takes nothing away',
  },
  {
    what: 'a lock is one of one, beside readers that are one of all',
    changes: [
      { file: 'acquire', find: 's.held + p_weight <= p_capacity)', replace: '(p_weight < p_capacity or s.held = 0))' },
    ],
    caughtBy: 'a reader is refused beside a lock',
  },
  {
    what: 'nobody takes the lock on the key',
    changes: [
      {
        file: 'keys',
        find: 'if cardinality(p_keys) = 1 and pg_try_advisory_xact_lock({lockClass}, hashtext(p_keys[1])) then',
        replace: 'if true then',
      },
    ],
    caughtBy: 'of many who ask at the same moment exactly one gets the lock',
  },
  {
    what: 'the transaction is repeatable read, and the function does not mind',
    changes: [
      { file: 'call', find: 'LEVEL READ COMMITTED', replace: 'LEVEL REPEATABLE READ' },
      {
        file: 'keys',
        find: "if current_setting('transaction_isolation') <> 'read committed' then",
        replace: 'if false then',
      },
    ],
    caughtBy: 'of many who ask at the same moment exactly one gets the lock',
  },
  {
    what: 'the fence begins anew with every lock',
    changes: [
      {
        file: 'keys',
        find: "return greatest(p_last + 1, (date_part('epoch', p_now) * 1000000)::bigint);",
        replace: 'return 1;',
      },
    ],
    caughtBy: 'tokens grow over releases, whichever client asks',
  },
  {
    what: 'leases begin in the past',
    changes: [
      {
        file: 'acquire',
        find: 'v_now timestamptz := clock_timestamp();',
        replace: "v_now timestamptz := now() - interval '1 hour';",
      },
    ],
    caughtBy: 'a lock excludes everybody else until it is released',
  },
  {
    what: 'newcomers pass the line',
    changes: [
      {
        file: 'acquire',
        find: '(v_first and s.held',
        replace: '(true and s.held',
      },
    ],
    caughtBy: 'small claims do not pass a big one that waits for room',
  },
  {
    what: 'a lease that ran out is handed to nobody, and newcomers pass the line',
    changes: [
      {
        file: 'acquire',
        find: 'v_served := {schema}.leasehold_serve(p_key, v_now, p_owner);',
        replace: 'v_served := false;',
      },
      {
        file: 'acquire',
        find: '(v_first and s.held',
        replace: '(true and s.held',
      },
    ],
    caughtBy: 'a newcomer does not pass the line, although the lease has just run out',
  },
  {
    what: 'the last in line is served first',
    changes: [{ file: 'queue', find: 'order by arrival limit 1;', replace: 'order by arrival desc limit 1;' }],
    caughtBy: 'whoever stands in line is served in order of arrival',
  },
  {
    what: 'what is handed over is held for the whole time to live',
    changes: [
      {
        file: 'queue',
        find: 'v_ttl_ms := least(v_head.queue_ms, v_head.ttl_ms);',
        replace: 'v_ttl_ms := v_head.ttl_ms;',
      },
    ],
    caughtBy: 'what was handed over and never renewed passes on',
  },
  {
    what: 'nobody is told',
    changes: [{ file: 'queue', find: 'if octet_length(p_message::text) >= 7900 then', replace: 'if true then' }],
    caughtBy: 'a release wakes whoever waits and watches, in another client too',
  },
  {
    what: 'all or none keeps what it got',
    changes: [
      {
        file: 'acquire',
        find: "raise exception 'refused' using errcode = 'LH000';",
        replace: 'return array_to_json(v_refusals);',
      },
    ],
    caughtBy: 'all or none grants none when one is busy, and leaves nothing behind',
  },
]

/** The SQL with the mistake in it. Every text is found exactly once, or the mutant would show nothing. */
export function mutated({ what, changes }: SqlMutant): Sources {
  const files: Record<string, string> = { ...sources }
  for (const { file, find, replace } of changes) {
    const original = files[file] as string
    const places = original.split(find).length - 1
    if (places !== 1) throw new Error(`"${what}" finds its text ${places} times in ${file}.sql`)
    files[file] = original.replace(find, () => replace)
  }
  return files as Sources
}
