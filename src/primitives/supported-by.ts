/**
 * The stores of this package that support a feature which others refuse, for error messages. Written by
 * `npm run matrix` from what the stores say of themselves: do not edit.
 */
export const SUPPORTED_BY = {
  readWrite: 'memory, sqlite, redis, postgres or etcd',
  request: 'memory, sqlite, redis, postgres or etcd',
  weights: 'memory, sqlite, redis, postgres or etcd',
  together: 'memory, sqlite, redis, postgres, postgres-advisory or etcd',
  election: 'memory, sqlite, redis, redlock, postgres or etcd',
  runOnce: 'memory, sqlite, redis, postgres or etcd',
  limiter: 'memory, sqlite, redis or postgres',
  schedule: 'memory, sqlite, redis or postgres',
} as const
