// npm start: on a fresh clone it installs and builds what is missing, then runs the demo.
import { ensureBuilt } from './build.mjs'
import { ensurePackages } from './ensure.mjs'

ensurePackages()
ensureBuilt()
await import('./demo/story.mjs')
