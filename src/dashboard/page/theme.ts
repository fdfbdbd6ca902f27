// Light or dark: as the system says, unless somebody chose.
import { effect, signal } from '@preact/signals'

export type Theme = 'light' | 'dark'
const system = matchMedia('(prefers-color-scheme: dark)')
const KEY = 'leasehold-theme'

function remembered(): Theme | undefined {
  try {
    const value = localStorage.getItem(KEY)
    return value === 'light' || value === 'dark' ? value : undefined
  } catch {
    return undefined
  }
}

export const theme = signal<Theme>(remembered() ?? (system.matches ? 'dark' : 'light'))

system.addEventListener('change', () => {
  if (remembered() === undefined) theme.value = system.matches ? 'dark' : 'light'
})
effect(() => {
  document.documentElement.dataset['theme'] = theme.value
})

export function toggleTheme(): void {
  theme.value = theme.value === 'dark' ? 'light' : 'dark'
  try {
    localStorage.setItem(KEY, theme.value)
  } catch {
    // Storage is forbidden: it lasts until the page is closed.
  }
}
