// Methods under a lock, compiled with standard decorators; reports the outcome of each.
import { createLocks, InvalidOptionError, locked, memory } from '../../../src/index.js'

export interface DecoratedReport {
  nightly: string[]
  charges: string[]
  oneAtATime: number
  close: string[]
  read: string[]
  failed: boolean
  free: string[]
  audit: string[]
  reveal: string[]
  overridden: string[]
  methodName: string
  onPrototype: boolean
  legacyField: string
  onClass: string
  onField: string
  badName: string
}

const locks = createLocks(memory(), { wait: 1_000 })
const held = async (): Promise<string[]> => (await locks.holders()).map(({ name, mode }) => `${name} ${mode}`)
const pause = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 5))

class Billing {
  readonly tenant: string
  static readonly region = 'north'
  inside = 0
  most = 0

  constructor(tenant: string) {
    this.tenant = tenant
  }

  @locked(locks, 'nightly')
  async nightly(): Promise<string[]> {
    return held()
  }

  @locked(locks, (order: string) => `order:${order}`)
  async charge(order: string, amount: number): Promise<string> {
    this.most = Math.max(this.most, ++this.inside)
    await pause()
    this.inside--
    return `${order} ${amount} ${(await held()).includes(`order:${order} exclusive`)}`
  }

  @locked(locks, function (this: Billing, year: number) {
    return `${this.tenant}:${year}`
  })
  async close(year: number): Promise<string[]> {
    return [this.tenant, String(year), ...(await held())]
  }

  @locked(locks, 'page', { mode: 'shared' })
  async read(): Promise<string[]> {
    return held()
  }

  @locked(locks, 'failing')
  async fail(error: Error): Promise<never> {
    throw error
  }

  @locked(locks, 'static')
  static async audit(): Promise<string[]> {
    return [this.region, ...(await held())]
  }

  @locked(locks, 'private')
  async #secret(): Promise<string[]> {
    return held()
  }

  reveal(): Promise<string[]> {
    return this.#secret()
  }
}

class Overridden extends Billing {
  override async nightly(): Promise<string[]> {
    return ['overridden', ...(await super.nightly())]
  }
}

/** The error of a misuse, as a compiler of old decorators or a mistake would cause it. */
function misuse(apply: () => unknown): string {
  try {
    apply()
    return 'nothing'
  } catch (error) {
    return error instanceof InvalidOptionError ? error.message : String(error)
  }
}

const billing = new Billing('acme')
const charges = await Promise.all([billing.charge('1', 10), billing.charge('1', 20)])
const own = new Error('mine')
const apply = locked(locks, 'name') as unknown as (target: unknown, context: unknown) => unknown

const report: DecoratedReport = {
  nightly: await billing.nightly(),
  charges,
  oneAtATime: billing.most,
  close: await billing.close(2_024),
  read: await billing.read(),
  failed: (await billing.fail(own).catch((error: unknown) => error)) === own,
  free: await held(),
  audit: await Billing.audit(),
  reveal: await billing.reveal(),
  overridden: await new Overridden('sub').nightly(),
  methodName: Billing.prototype.charge.name,
  onPrototype: Object.hasOwn(Billing.prototype, 'charge') && !Object.hasOwn(billing, 'charge'),
  legacyField: misuse(() => apply(Billing.prototype, 'charge')),
  onClass: misuse(() => apply(Billing, { kind: 'class', name: 'Billing' })),
  onField: misuse(() => apply(undefined, { kind: 'field', name: 'tenant' })),
  badName: misuse(() => (locked(locks, 7 as never) as unknown as typeof apply)(async () => {}, { kind: 'method' })),
}
process.stdout.write(`${JSON.stringify(report)}\n`)
