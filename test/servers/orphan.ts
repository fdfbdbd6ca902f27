import { startPostgres, startRedis } from '../../testbed/servers/index.js'

// Starts servers, reports them, and waits to be killed. Run by left-behind.test.ts in a separate process.

const [redis, frozen, postgres] = await Promise.all([startRedis(), startRedis(), startPostgres()])
await frozen.freeze()
console.log(JSON.stringify([redis, frozen, postgres].map(({ pid, dir }) => ({ pid, dir }))))
setInterval(() => {}, 60_000)
