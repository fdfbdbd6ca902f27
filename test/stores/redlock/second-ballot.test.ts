import { expect, test } from 'vitest'
import type { Answer } from '../../../src/store.js'
import { exclusive, modelCluster } from './model-cluster.js'

test.each([0, 20])(
  'an attempt that lacks a restarted node is decided by one that this process had not identified (%s ms late)',
  async (lateMs) => {
    const { world, quorum, nodes, intercept } = modelCluster()
    // The third node does not say that it votes, so the first acquisition is decided without it.
    intercept.on = (call, node, deliver) => {
      if (call !== 'identify' || node !== 2) world.after(1, deliver)
    }
    quorum.acquire([{ ...exclusive, key: 'lock:first' }], () => {})
    await world.pass(2_000)
    nodes[0]?.restart(undefined)
    intercept.on = (call, node, deliver) => void world.after(call === 'identify' && node === 2 ? lateMs : 1, deliver)
    const answers: Answer[] = []
    quorum.acquire([exclusive, { ...exclusive, key: 'lock:y' }], (given) => answers.push(...given))
    await world.pass(100)
    expect(answers).toMatchObject([{ granted: true }, { granted: true }])
    expect(nodes.map((node) => node.inspect(exclusive.key).length)).toEqual([0, 1, 1])
  },
)

test('an attempt that was released between its two ballots is not granted by the second', async () => {
  const { world, quorum, nodes, intercept } = modelCluster()
  intercept.on = (call, node, deliver) => {
    if (call !== 'identify' || node !== 2) world.after(1, deliver)
  }
  quorum.acquire([{ ...exclusive, key: 'lock:first' }], () => {})
  await world.pass(2_000)
  nodes[0]?.restart(undefined)
  intercept.on = (call, node, deliver) => void world.after(call === 'identify' && node === 2 ? 20 : 1, deliver)
  const answers: Answer[] = []
  quorum.acquire([exclusive], (given) => answers.push(...given))
  await world.pass(10)
  expect(answers).toEqual([])
  quorum.release([{ key: exclusive.key, owner: exclusive.owner }], () => {})
  await world.pass(1_000)
  expect(answers).toMatchObject([{ granted: 'unknown' }])
  expect(nodes.map((node) => node.inspect(exclusive.key).length)).toEqual([0, 0, 0])
})
