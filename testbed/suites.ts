/** The variable that names the one kind of store (testbed/fixtures.ts) that the suites of the primitives run on. Unset: all but etcd. */
export const SUITES_ON = 'LEASEHOLD_SUITES_ON'
