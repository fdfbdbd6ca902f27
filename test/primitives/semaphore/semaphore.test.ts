import { everywhere } from '../../../testbed/fixtures.js'
import { semaphoreCases } from './cases.js'

everywhere(semaphoreCases)
