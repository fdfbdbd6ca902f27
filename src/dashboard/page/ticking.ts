// Everything that counts time. Hundreds of cells count four times a second: they are set directly, because rendering them
// as components costs ten times as much.
import { effect } from '@preact/signals'
import { duration } from './format.js'
import { now } from './state.js'

export const ageText = (since: number, time: number): string => duration(time - since)
export const untilText = (at: number, time: number): string => (at <= time ? 'now' : duration(at - time))

export function barTransform(ends: number, ttlMs: number, time: number): string {
  return `scaleX(${Math.min(Math.max((ends - time) / ttlMs, 0), 1).toFixed(3)})`
}

function setText(element: HTMLElement, text: string): void {
  const node = element.firstChild as Text | null
  if (node && node.data !== text) node.data = text
}

export function keepCounting(): void {
  effect(() => {
    const time = now.value
    for (const element of document.querySelectorAll<HTMLElement>('[data-since]')) {
      setText(element, ageText(Number(element.dataset['since']), time))
    }
    for (const element of document.querySelectorAll<HTMLElement>('[data-until]')) {
      setText(element, untilText(Number(element.dataset['until']), time))
    }
    for (const element of document.querySelectorAll<HTMLElement>('[data-ends]')) {
      element.style.transform = barTransform(Number(element.dataset['ends']), Number(element.dataset['ttl']), time)
    }
  })
}
