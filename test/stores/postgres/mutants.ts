import { type SqlFiles, sqlFiles } from '../../../src/stores/postgres/schema.js'

/** One small mistake in the SQL, which a case of the conformance kit is there to notice. */
export interface SqlMutant {
  what: string
  changes: { file: keyof SqlFiles; find: string; replace: string }[]
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
    caughtBy: 'a release by another owner is answered gone and frees nothing',
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
    caughtBy: 'a renewal by another owner is answered gone and prolongs nothing',
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
    caughtBy: 'the renewal of a released lease is answered gone and creates nothing',
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
    caughtBy: 'a renewal never shortens a lease, even if it arrives late',
  },
  {
    what: 'a lock is one of one, beside readers that are one of all',
    changes: [
      { file: 'acquire', find: 's.held + p_weight <= p_capacity)', replace: '(p_weight < p_capacity or s.held = 0))' },
    ],
    caughtBy: 'a reader is refused while a lock is held',
  },
  {
    what: 'no transaction takes the lock on the key',
    changes: [
      {
        file: 'keys',
        find: 'if cardinality(p_keys) = 1 and pg_try_advisory_xact_lock({lockClass}, hashtext(p_keys[1])) then',
        replace: 'if true then',
      },
    ],
    caughtBy: 'a lock that many clients request at the same moment is granted to exactly one',
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
    caughtBy: 'a lock that many clients request at the same moment is granted to exactly one',
  },
  {
    what: 'the fence begins anew with every lock',
    changes: [
      {
        file: 'keys',
        find: "return greatest(p_last + 32, (date_part('epoch', p_now) * 1000000)::bigint);",
        replace: 'return 1;',
      },
    ],
    caughtBy: 'tokens grow from release to release, whichever client acquires',
  },
  {
    what: 'leases begin in the past',
    changes: [
      {
        file: 'acquire',
        find: 'v_now timestamptz := clock_timestamp();\n  v_token bigint;',
        replace: "v_now timestamptz := now() - interval '1 hour';\n  v_token bigint;",
      },
    ],
    caughtBy: 'a lock excludes every other owner until it is released',
  },
  {
    what: 'newcomers overtake the queue',
    changes: [
      {
        file: 'acquire',
        find: '(v_first and s.held',
        replace: '(true and s.held',
      },
    ],
    caughtBy: 'small claims do not overtake a big one that waits for capacity',
  },
  {
    what: 'an expired lease is not handed off, and newcomers overtake the queue',
    changes: [
      {
        file: 'acquire',
        find: 'v_served := {schema}.leasehold_hand_off(p_key, v_now, p_owner, false);',
        replace: 'v_served := false;',
      },
      {
        file: 'acquire',
        find: '(v_first and s.held',
        replace: '(true and s.held',
      },
    ],
    caughtBy: 'a new request does not overtake the queue when the lease has just expired',
  },
  {
    what: 'the last of the queue is served first',
    changes: [
      { file: 'queue', find: 'order by arrival limit 1;', replace: 'order by arrival desc limit 1;' },
      {
        file: 'release',
        find: 'q.key = p_key order by q.arrival limit 1',
        replace: 'q.key = p_key order by q.arrival desc limit 1',
      },
    ],
    caughtBy: 'waiters are granted the lock in the order of their arrival',
  },
  {
    what: 'a lease that is handed off is held for the whole ttl',
    changes: [
      {
        file: 'queue',
        find: 'v_ttl_ms := least(v_head.queue_ms, v_head.ttl_ms);',
        replace: 'v_ttl_ms := v_head.ttl_ms;',
      },
      {
        file: 'release',
        find: "least(h.queue_ms, h.ttl_ms) * interval '1 millisecond' end,\n        value = h.value, subscriber = h.subscriber\n    from (select)",
        replace:
          "h.ttl_ms * interval '1 millisecond' end,\n        value = h.value, subscriber = h.subscriber\n    from (select)",
      },
    ],
    caughtBy: 'a lease that was handed off and never renewed passes to the next client',
  },
  {
    what: 'no notification is sent',
    changes: [{ file: 'queue', find: 'if octet_length(p_message::text) >= 7900 then', replace: 'if true then' }],
    caughtBy: 'a release wakes a waiter that watches the key, also in another client',
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
    caughtBy: 'an atomic batch grants no claim if one key is held, and leaves nothing behind',
  },
]

/** The SQL with the mistake in it. Every text is found exactly once, or the mutant would show nothing. */
export function mutated({ what, changes }: SqlMutant): SqlFiles {
  const files: Record<string, string> = { ...sqlFiles }
  for (const { file, find, replace } of changes) {
    const original = files[file] as string
    const found = original.split(find).length - 1
    if (found !== 1) throw new Error(`"${what}" finds its text ${found} times in ${file}.sql`)
    files[file] = original.replace(find, () => replace)
  }
  return files as SqlFiles
}
