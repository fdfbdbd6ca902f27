import { everywhere } from '../../../testbed/fixtures.js'
import { electionInputCases, refusal } from './input.cases.js'
import { leadingCases } from './leading.cases.js'
import { observingCases } from './observing.cases.js'
import { steppingDownCases } from './stepping-down.cases.js'

const cases = [...leadingCases, ...steppingDownCases, ...observingCases, ...electionInputCases]

everywhere(cases.map((item) => ({ ...item, needs: ['values', ...(item.needs ?? [])], otherwise: refusal })))
