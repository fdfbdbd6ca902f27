import { kinds, suite, suiteKinds } from '../../../testbed/fixtures.js'
import { anyName, argumentCases, withoutQueue, plainNames } from './arguments.js'
import { holdingCases } from './holding.js'
import { orderCases } from './order.js'
import { queryCases } from './query.js'
import { signalCases } from './signal.js'
import { stealAtOnce, stealCases } from './steal.js'

const cases = [
  ...argumentCases,
  ...holdingCases,
  ...orderCases,
  ...signalCases,
  ...stealCases,
  ...queryCases,
  ...withoutQueue,
]

for (const kind of suiteKinds()) {
  suite(kind, kind === kinds.memory ? [...cases, anyName, ...stealAtOnce] : [...cases, plainNames])
}
