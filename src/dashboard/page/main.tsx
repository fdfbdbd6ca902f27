import { render } from 'preact'
import { App, onKey, readHash } from './app.js'
import { follow } from './stream.js'
import { keepCounting } from './ticking.js'

readHash()
addEventListener('hashchange', readHash)
document.addEventListener('keydown', onKey)
render(<App />, document.getElementById('app') as HTMLElement)
follow()
keepCounting()
