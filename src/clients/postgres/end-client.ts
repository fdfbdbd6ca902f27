import { realWorld, type World } from '../../util/world.js'
import type { PgClient } from './types.js'

/**
 * END_MS: how long an orderly end of a connection may take. Longer than it takes on a busy machine; without a bound, a peer
 * that does not answer any more would keep `close()` waiting for ever.
 */
const END_MS = 1_000

/** Ends a connection in whatever state it is. One that does not end in time is destroyed: its socket would keep the process alive. */
export function endClient(client: PgClient, world: World = realWorld): Promise<void> {
  return new Promise((resolve) => {
    const destroy = (): void => {
      client.connection?.stream?.destroy()
      resolve()
    }
    // The timer keeps the process alive, because the caller of the store's close() awaits it.
    const cancel = world.after(END_MS, destroy, true)
    void client
      .end()
      .catch(() => {})
      .then(() => {
        cancel()
        resolve()
      })
  })
}
