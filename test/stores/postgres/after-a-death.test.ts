import { kinds, suite } from '../../support/places.js'
import { afterADeath } from '../../primitives/read-write/after-a-death.js'

suite(kinds.postgres, afterADeath)
