import { redis } from '../../../src/stores/redis/index.js'
import { conformance, coreCases, storeCases } from '../../../src/testing/index.js'
import type { Proving } from '../proving.js'
import type { RedisFixture } from './fixtures.js'

/** Cases under way at once: as many as a machine of two cores keeps up with. */
const AT_ONCE = 6

/** The whole kit on a fixture, without a test runner. */
export async function conformity(p: Proving, fixture: RedisFixture): Promise<void> {
  const cases: { name: string; run: () => Promise<void> }[] = []
  let begin = async (): Promise<void> => {}
  let finish = async (): Promise<void> => {}
  const ends: (() => unknown)[] = []
  conformance({
    name: fixture.name,
    cases: [...storeCases(), ...coreCases()],
    describe: (_name, body) => body(),
    test: (name, run) => cases.push({ name, run }),
    beforeAll: (body) => {
      begin = body
    },
    afterAll: (body) => {
      finish = body
    },
    open: async () => ({
      async store() {
        const { client, end } = await fixture.connect()
        ends.push(end)
        return redis(client)
      },
      async close() {
        for (const end of ends) await end()
        await fixture.stop()
      },
    }),
  })
  await begin()
  const failed: string[] = []
  const queue = [...cases]
  const worker = async (): Promise<void> => {
    for (let next = queue.shift(); next; next = queue.shift()) {
      const { name, run } = next
      await run().catch((error: unknown) => failed.push(`${name}: ${String(error).split('\n')[0]}`))
    }
  }
  await Promise.all(Array.from({ length: AT_ONCE }, worker))
  await finish()
  for (const each of failed) p.say(`  not kept: ${each}`)
  p.check(
    `${fixture.name}: the whole conformance kit`,
    failed.length === 0,
    `${cases.length - failed.length} of ${cases.length}`,
  )
}
