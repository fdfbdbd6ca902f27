import { kinds, suite } from '../../../testbed/fixtures.js'
import { afterADeath } from './after-expiry.js'

for (const kind of [kinds.memory, kinds.sqlite, kinds.redis, kinds.postgres]) suite(kind, afterADeath)
