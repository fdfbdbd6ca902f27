/**
 * Each group of a batch in a call of its own, the answers in the order of the items. A group whose call fails is answered
 * by `failed`, item by item: the other groups have been carried out, and their answers must not be lost with it.
 */
export async function regrouped<I, O, G>(
  items: readonly I[],
  groupOf: (item: I) => G,
  call: (part: I[], group: G) => Promise<O[]>,
  failed: (error: unknown) => O,
): Promise<O[]> {
  const groups = new Map<G, number[]>()
  for (const [i, item] of items.entries()) {
    const group = groupOf(item)
    const members = groups.get(group)
    if (members) members.push(i)
    else groups.set(group, [i])
  }
  const answers: O[] = []
  await Promise.all(
    [...groups].map(async ([group, members]) => {
      try {
        const part = await call(
          members.map((i) => items[i] as I),
          group,
        )
        for (const [at, i] of members.entries()) answers[i] = part[at] as O
      } catch (error) {
        for (const i of members) answers[i] = failed(error)
      }
    }),
  )
  return answers
}
