import { kinds, suite } from '../../support/places.js'
import { afterADeath } from './after-a-death.js'

for (const kind of [kinds.memory, kinds.sqlite, kinds.redis, kinds.postgres]) suite(kind, afterADeath)
