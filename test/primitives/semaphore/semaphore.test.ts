import { everywhere } from '../../support/places.js'
import { semaphoreCases } from './cases.js'

everywhere(semaphoreCases)
