import { everywhere } from '../../support/places.js'
import { readWriteCases } from './cases.js'

everywhere(readWriteCases)
