import { type Channel, channel, type TracingChannel, tracingChannel } from 'node:diagnostics_channel'

type EventName = 'acquired' | 'released' | 'renewed' | 'atRisk' | 'lost' | 'abandoned' | 'timeout' | 'error'

/** Around each acquisition: of one name, or of all names of one `acquireAll` or `withLocks` together. */
export const acquireChannel: TracingChannel<unknown, object> = tracingChannel('leasehold:acquire')

/** From the grant of a lock to its end. */
export const holdChannel: TracingChannel<unknown, object> = tracingChannel('leasehold:hold')

/** After each call to a store. */
export const callChannel: Channel = channel('leasehold:call')

/** By event. `channel()` keeps channels weakly: a subscriber would not find one that was collected. */
export const eventChannels: Readonly<Record<EventName, Channel>> = {
  acquired: channel('leasehold:acquired'),
  released: channel('leasehold:released'),
  renewed: channel('leasehold:renewed'),
  atRisk: channel('leasehold:atRisk'),
  lost: channel('leasehold:lost'),
  abandoned: channel('leasehold:abandoned'),
  timeout: channel('leasehold:timeout'),
  error: channel('leasehold:error'),
}

/** Whether any of these channels has a subscriber. Written out: V8 inlines constant names, a loop would cost more. */
export function isAnyEventPublished(): boolean {
  const { acquired, released, renewed, atRisk, lost, abandoned, timeout, error } = eventChannels
  return (
    acquired.hasSubscribers ||
    released.hasSubscribers ||
    renewed.hasSubscribers ||
    atRisk.hasSubscribers ||
    lost.hasSubscribers ||
    abandoned.hasSubscribers ||
    timeout.hasSubscribers ||
    error.hasSubscribers
  )
}

/** Not `hasSubscribers` of the tracing channel, which not every run-time has. */
export function isTraced({ start, end, asyncStart, asyncEnd, error }: TracingChannel<unknown, object>): boolean {
  return (
    start.hasSubscribers ||
    asyncEnd.hasSubscribers ||
    error.hasSubscribers ||
    end.hasSubscribers ||
    asyncStart.hasSubscribers
  )
}
