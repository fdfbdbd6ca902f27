// A table of facts. The table of holders has one of its own, which is built to be fast with thousands of rows.
import type { ComponentChildren, JSX } from 'preact'

export interface Column<T> {
  title: string
  of: (row: T) => ComponentChildren
  /** `number`: to the right, with its title. */
  style?: 'number' | 'mono' | 'what'
}

export function FactTable<T>(props: {
  rows: readonly T[]
  keyOf: (row: T) => string | number
  columns: readonly Column<T>[]
  class?: string
  caption?: string
}): JSX.Element {
  const { rows, keyOf, columns, caption } = props
  return (
    <table class={props.class}>
      {caption !== undefined && <caption class="hidden">{caption}</caption>}
      <thead>
        <tr>
          {columns.map(({ title, style }) => (
            <th key={title} scope="col" class={style === 'number' ? style : undefined}>
              {title}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {rows.map((row) => (
          <tr key={keyOf(row)}>
            {columns.map(({ title, style, of }) => (
              <td key={title} data-label={title} class={style}>
                {of(row)}
              </td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  )
}
