/** Reads the events that the dashboard sends to its pages. */

/** Resolves with the first event of this kind that fits. */
export async function eventFrom<T>(address: string, wanted: string, fits: (data: T) => boolean): Promise<T> {
  for await (const data of eventsFrom<T>(address, wanted)) if (fits(data)) return data
  throw new Error('the stream ended')
}

/** All events of this kind, from one connection. */
export async function* eventsFrom<T>(address: string, wanted: string): AsyncGenerator<T> {
  const aborting = new AbortController()
  const answer = await fetch(`${address}events`, { signal: aborting.signal })
  let text = ''
  try {
    for await (const part of answer.body as unknown as AsyncIterable<Uint8Array>) {
      text += Buffer.from(part).toString('utf8')
      const events = text.split('\n\n')
      text = events.pop() ?? ''
      for (const event of events) {
        const [, name, data = ''] = /^event: (\w+)\ndata: (.*)$/s.exec(event) ?? []
        if (name === wanted) yield JSON.parse(data) as T
      }
    }
  } finally {
    aborting.abort()
  }
}
