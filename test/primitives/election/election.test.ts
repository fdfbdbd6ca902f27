import { everywhere } from '../../support/places.js'
import { inputCases, refusal } from './input.cases.js'
import { leadingCases } from './leading.cases.js'
import { observingCases } from './observing.cases.js'
import { steppingDownCases } from './stepping-down.cases.js'

const cases = [...leadingCases, ...steppingDownCases, ...observingCases, ...inputCases]

everywhere(cases.map((item) => ({ ...item, needs: ['values', ...(item.needs ?? [])], otherwise: refusal })))
