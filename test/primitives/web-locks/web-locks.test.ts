import { kinds, suite } from '../../support/places.js'
import { anyName, argumentCases, lineless, plainNames } from './arguments.js'
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
  ...lineless,
]

const { memory, ...others } = kinds
suite(memory, [...cases, anyName, ...stealAtOnce])
for (const kind of Object.values(others)) suite(kind, [...cases, plainNames])
