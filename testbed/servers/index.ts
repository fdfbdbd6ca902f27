// Real servers for tests, benchmarks and campaigns: on free ports of 127.0.0.1, in temporary directories, removed when
// the process that started them has ended, however it ended (see reaper.mjs).
export { type EtcdCluster, type EtcdNode, type EtcdOptions, startEtcd } from './etcd.js'
export { type PgBouncer, type PgBouncerOptions, startPgBouncer } from './pgbouncer.js'
export {
  type PostgresOptions,
  type PostgresServer,
  type PostgresSettings,
  type StandbyOptions,
  type StandbyServer,
  startPostgres,
  startStandby,
} from './postgres.js'
export type { RestartOptions, Server } from './process.js'
export { type Direction, type Proxy, startProxy } from './proxy.js'
export { type RedisOptions, type RedisServer, startRedis } from './redis.js'
export { type RedisCluster, type RedisClusterOptions, startRedisCluster } from './redis-cluster.js'
export { type SentinelOptions, type SentinelSetup, startSentinel } from './sentinel.js'
