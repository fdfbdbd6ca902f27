import { everywhere } from '../../../testbed/fixtures.js'
import { readWriteCases } from './cases.js'

everywhere(readWriteCases)
