// One chart over time. Lines differ in their dashes, too, and the legend tells the latest figures as text.
import type { JSX } from 'preact'
import { useEffect, useRef } from 'preact/hooks'
import uPlot from 'uplot'
import { theme } from './theme.js'

export interface Series {
  label: string
  /** Name of a colour of the style sheet. */
  color: string
  dash?: number[]
  values: (number | null)[]
  fill?: boolean
  /** For counts, which do not glide from one to the next. */
  steps?: boolean
}

export interface ChartProps {
  label: string
  /** Epoch milliseconds. */
  times: number[]
  series: Series[]
  format: (value: number) => string
  /** For durations, which differ by powers of ten. */
  logarithmic?: boolean
}

const HEIGHT = 170
/** Seconds that a chart shows. */
const WINDOW_S = 300

export function Chart({ label, times, series, format, logarithmic = false }: ChartProps): JSX.Element {
  const place = useRef<HTMLDivElement>(null)
  const plot = useRef<uPlot | undefined>(undefined)
  const shape = `${theme.value} ${series.map((one) => one.label).join()}`
  useEffect(() => {
    const element = place.current as HTMLDivElement
    const made = new uPlot(optionsOf(element, series, format, logarithmic), dataOf(times, series), element)
    plot.current = made
    const observer = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: HEIGHT }))
    observer.observe(element)
    return () => {
      observer.disconnect()
      made.destroy()
    }
  }, [shape])
  useEffect(() => plot.current?.setData(dataOf(times, series)), [times, series])
  return (
    <figure class="chart">
      <div ref={place} role="img" aria-label={`${label}: ${summaryOf(series, format)}`} />
      <figcaption>
        {series.map((one) => (
          <span key={one.label} class="legend">
            <svg width="22" height="8" aria-hidden="true">
              <line
                x1="0"
                y1="4"
                x2="22"
                y2="4"
                stroke={`var(--${one.color})`}
                stroke-width="2"
                stroke-dasharray={one.dash?.join(' ')}
              />
            </svg>
            {one.label} <b>{latest(one, format)}</b>
          </span>
        ))}
      </figcaption>
    </figure>
  )
}

function summaryOf(series: Series[], format: (value: number) => string): string {
  return series.map((one) => `${one.label} ${latest(one, format)}`).join(', ')
}

function latest({ values }: Series, format: (value: number) => string): string {
  const last = values.findLast((value) => value !== null)
  return last === undefined || last === null ? 'none' : format(last)
}

function dataOf(times: number[], series: Series[]): uPlot.AlignedData {
  return [times.map((at) => at / 1_000), ...series.map(({ values }) => values)] as uPlot.AlignedData
}

function optionsOf(
  element: HTMLElement,
  series: Series[],
  format: (value: number) => string,
  logarithmic: boolean,
): uPlot.Options {
  const style = getComputedStyle(document.documentElement)
  const color = (name: string): string => style.getPropertyValue(`--${name}`).trim()
  const axis = {
    stroke: color('dim'),
    font: '11px system-ui',
    ticks: { show: false },
    grid: { stroke: color('line'), width: 1 },
  }
  return {
    width: element.clientWidth || 300,
    height: HEIGHT,
    legend: { show: false },
    cursor: { show: false },
    padding: [8, 26, 0, 0],
    scales: {
      // A dashboard that was opened just now shows a minute, and more as it goes on.
      x: { range: (_plot, min, max) => [Math.min(Math.max(min, max - WINDOW_S), max - 60), max] },
      y: logarithmic ? { distr: 3, log: 10 } : { range: (_plot, _min, max) => [0, Math.max(max * 1.15, 4)] },
    },
    axes: [
      { ...axis, values: (_plot, ticks) => ticks.map((at) => clockOf(at)), space: 80, size: 30 },
      {
        ...axis,
        size: 58,
        ...(logarithmic ? { filter: powersOfTen, grid: { ...axis.grid, filter: powersOfTen } } : {}),
        values: (_plot, ticks) => ticks.map((value) => (value === null ? '' : format(value))),
      },
    ],
    series: [
      {},
      ...series.map((one) => ({
        stroke: color(one.color),
        width: 2,
        dash: one.dash ?? [],
        spanGaps: true,
        points: { show: one.values.filter((value) => value !== null).length < 3, size: 6 },
        ...(one.steps && uPlot.paths.stepped ? { paths: uPlot.paths.stepped({ align: 1 }) } : {}),
        ...(one.fill ? { fill: `${color(one.color)}22` } : {}),
      })),
    ],
  }
}

/** Of a logarithmic axis: nine lines for each power of ten would be a grey field. */
function powersOfTen(_plot: uPlot, ticks: number[]): (number | null)[] {
  return ticks.map((tick) => (Number.isInteger(Math.round(Math.log10(tick) * 1e6) / 1e6) ? tick : null))
}

function clockOf(seconds: number): string {
  return new Date(seconds * 1_000).toLocaleTimeString(undefined, {
    hour: '2-digit',
    minute: '2-digit',
    second: '2-digit',
    hourCycle: 'h23',
  })
}
