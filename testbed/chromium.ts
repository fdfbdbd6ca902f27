/** A real Chromium for tests of the page. */
import { type Browser, chromium } from 'playwright-core'
import { serverBinary } from './servers/binaries.js'

export { type Browser, type Page } from 'playwright-core'

/** Debian's Chromium; elsewhere it may have another name. */
function binary(): string {
  for (const name of ['chromium', 'chromium-browser', 'google-chrome']) {
    try {
      return serverBinary(name)
    } catch {
      // the next name
    }
  }
  return serverBinary('chromium')
}

export function openBrowser(): Promise<Browser> {
  return chromium.launch({
    executablePath: binary(),
    args: [
      '--no-sandbox',
      '--disable-gpu',
      '--disable-dev-shm-usage',
      '--disable-background-networking',
      '--disable-component-update',
      '--no-first-run',
    ],
  })
}
