/** A lease, as the list sees it. */
export interface ListedLease<L> {
  readonly owner: string
  /** Neighbours in the list. */
  earlier: L | undefined
  later: L | undefined
}

/** FEW: so many are searched one by one. An index of fewer costs more than it saves. */
const FEW = 8

/**
 * The leases of one instance, by age. A list instead of a map from owner to lease: each owner is a new string of 60
 * characters, and hashing it and keeping a map of entries that come and go took a third of the time of a lock in
 * memory. Only revocations, and grants to an owner that the request names, look for an owner. The map is made for the
 * first search, and dropped when more leases were added since the last search than there are.
 */
export class LeaseList<L extends ListedLease<L>> {
  size = 0
  #first: L | undefined
  #last: L | undefined
  #byOwner: Map<string, L> | undefined
  /** How many were added to `#byOwner` since it was last of use. */
  #added = 0

  add(lease: L): void {
    lease.earlier = this.#last
    if (this.#last) this.#last.later = lease
    else this.#first = lease
    this.#last = lease
    this.size++
    if (!this.#byOwner) return
    if (++this.#added > this.size) this.#byOwner = undefined
    else this.#byOwner.set(lease.owner, lease)
  }

  /** False if it was not there. */
  remove(lease: L): boolean {
    const { earlier, later } = lease
    if (!earlier && this.#first !== lease) return false
    if (earlier) earlier.later = later
    else this.#first = later
    if (later) later.earlier = earlier
    else this.#last = earlier
    lease.earlier = lease.later = undefined
    this.size--
    this.#byOwner?.delete(lease.owner)
    return true
  }

  find(owner: string): L | undefined {
    if (this.size > FEW) return this.#indexed().get(owner)
    let lease = this.#last
    while (lease && lease.owner !== owner) lease = lease.earlier
    return lease
  }

  /** As they are now, the oldest first. */
  all(): L[] {
    const leases: L[] = []
    for (let lease = this.#first; lease; lease = lease.later) leases.push(lease)
    return leases
  }

  #indexed(): Map<string, L> {
    this.#added = 0
    this.#byOwner ??= new Map(this.all().map((lease) => [lease.owner, lease]))
    return this.#byOwner
  }
}
