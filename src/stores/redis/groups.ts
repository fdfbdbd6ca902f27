/** Each group in a call of its own, the answers in the order of the items. */
export async function regrouped<I, O, G>(
  items: readonly I[],
  groupOf: (item: I) => G,
  call: (part: I[], group: G) => Promise<O[]>,
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
      const part = await call(
        members.map((i) => items[i] as I),
        group,
      )
      for (const [at, i] of members.entries()) answers[i] = part[at] as O
    }),
  )
  return answers
}
