/**
 * What the lease table needs of a client library. pg.ts and postgres-js.ts implement it.
 *
 * @module
 */
import type { OwnConnection } from './own-connection.js'
import type { PgPool, PostgresJsSql } from './types.js'

/** A `pg` Pool or a postgres.js `sql`. */
export type PostgresClient = PgPool | PostgresJsSql

export interface PostgresDriver {
  /**
   * Runs statements in one simple-protocol message, which is one transaction. Resolves with the first column of the
   * first row of the last one. A connection that does not answer is given up soon after `timeoutMs`.
   */
  run(sql: string, timeoutMs: number): Promise<string | undefined>
  /** The connection for heartbeats and releases beside the user's own, one for all stores on this client. Each store closes it. */
  ownConnection(timeoutMs: number): OwnConnection
  /** Listens on one connection for all stores on this client, which is opened again when it breaks. */
  listen(channels: readonly string[], handler: NotificationHandler, timeoutMs: number): NotificationListener
  /** Calls the listener when a connection broke while no call was under way on it. */
  onConnectionLost(listener: () => void): () => void
}

export interface NotificationHandler {
  onNotification(payload: string, channel: string): void
  /** The server notifies from now on. Called again after each reconnect. */
  onListening(): void
  /** The connection is gone: notifications that are sent now are missed. */
  onConnectionLost(): void
}

export interface NotificationListener {
  /** A notification that was sent did not arrive. `before`: an earlier one did, on this connection. */
  reportSilence(before: boolean): void
  close(): Promise<void>
}
