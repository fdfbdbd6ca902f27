// The connection to the server. A page that nobody sees has none.
import type { DashboardFacts, Hello, HolderChanges } from '../protocol.js'
import { apply, connection, greet, learn } from './state.js'

let source: EventSource | undefined

function open(): void {
  source?.close()
  connection.value = 'connecting'
  const opened = new EventSource('events')
  source = opened
  const on = <T>(event: string, handle: (data: T) => void): void =>
    opened.addEventListener(event, (message) => handle(JSON.parse((message as MessageEvent<string>).data) as T))
  on<Hello>('hello', greet)
  on<HolderChanges>('locks', apply)
  on<DashboardFacts>('facts', learn)
  opened.addEventListener('error', () => {
    if (source !== opened) return
    // The browser tries again by itself, unless the server has refused.
    connection.value = opened.readyState === EventSource.CLOSED ? 'refused' : 'lost'
  })
}

function pause(): void {
  source?.close()
  source = undefined
  connection.value = 'paused'
}

export function follow(): void {
  document.addEventListener('visibilitychange', () => (document.hidden ? pause() : open()))
  if (document.hidden) pause()
  else open()
}
