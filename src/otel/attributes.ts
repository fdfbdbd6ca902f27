import type { OtelAttributes } from './api.js'

/** What messages have in common that becomes an attribute. */
interface Described {
  store: string
  kind: string
  namespace?: string | undefined
  mode?: 'exclusive' | 'shared'
  name: string
  names?: readonly string[] | undefined
}

/** The attributes of a metric, alone and with each outcome: made once, since every lock needs them. */
export class MetricAttributes {
  readonly plain: OtelAttributes
  /** One of them is the name of a lock. */
  readonly named: boolean
  readonly #byOutcome = new Map<string, OtelAttributes>()

  constructor(plain: OtelAttributes, named: boolean) {
    this.plain = plain
    this.named = named
  }

  with(outcome: string): OtelAttributes {
    let attributes = this.#byOutcome.get(outcome)
    if (!attributes) {
      attributes = { ...this.plain, 'leasehold.outcome': outcome }
      this.#byOutcome.set(outcome, attributes)
    }
    return attributes
  }
}

/** Lock names are attributes only if asked for: a backend keeps a series for each value that it has ever seen. */
export class AttributesOf {
  readonly #withNames: boolean
  readonly #known = new Map<string, MetricAttributes>()

  constructor(withNames: boolean) {
    this.#withNames = withNames
  }

  /** The same object for the same values, unless one of them is a name. */
  metric({ store, kind, namespace, name }: Described): MetricAttributes {
    if (this.#withNames) {
      return new MetricAttributes({ ...common(store, kind, namespace), 'leasehold.lock.name': name }, true)
    }
    const key = namespace === undefined ? `${store} ${kind}` : `${store} ${kind} ${namespace}`
    let known = this.#known.get(key)
    if (!known) this.#known.set(key, (known = new MetricAttributes(common(store, kind, namespace), false)))
    return known
  }

  span({ store, kind, namespace, mode, name, names }: Described): OtelAttributes {
    const attributes = common(store, kind, namespace)
    if (mode) attributes['leasehold.lock.mode'] = mode
    if (names) attributes['leasehold.lock.count'] = names.length
    if (this.#withNames && names) attributes['leasehold.lock.names'] = [...names]
    else if (this.#withNames) attributes['leasehold.lock.name'] = name
    return attributes
  }
}

function common(store: string, kind: string, namespace: string | undefined): OtelAttributes {
  const attributes: OtelAttributes = { 'leasehold.store.name': store, 'leasehold.lock.kind': kind }
  if (namespace !== undefined) attributes['leasehold.namespace'] = namespace
  return attributes
}
