import { startPostgres, startRedis } from '../../scripts/servers/index.js'

// Starts servers, says which, and waits to be killed: run by left-behind.test.ts in a process of its own.

const [redis, frozen, postgres] = await Promise.all([startRedis(), startRedis(), startPostgres()])
await frozen.freeze()
console.log(JSON.stringify([redis, frozen, postgres].map(({ pid, dir }) => ({ pid, dir }))))
setInterval(() => {}, 60_000)
