import { coreCases, storeCases } from '../../../src/testing/index.js'
import { kinds, suite } from '../../../testbed/fixtures.js'

suite(kinds.etcd, [...storeCases(), ...coreCases()])
