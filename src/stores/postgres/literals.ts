/**
 * Arguments as constants of exactly the type that our functions declare. A function of the same name that fits the
 * arguments better, made by somebody who may create in the schema, would otherwise be called instead of ours.
 *
 * @module
 */

type Maybe<T> = T | null | undefined

export function sqlText(value: Maybe<string>): string {
  return `${value === null || value === undefined ? 'NULL' : constant(value)}::pg_catalog.text`
}

export function sqlInteger(value: number): string {
  return `${value}::pg_catalog.int4`
}

export function sqlBigint(value: Maybe<bigint>): string {
  return `${value ?? 'NULL'}::pg_catalog.int8`
}

export function sqlNumber(value: Maybe<number>): string {
  return `${value ?? 'NULL'}::pg_catalog.float8`
}

export function sqlBoolean(value: boolean): string {
  return String(value)
}

/** Characters beyond ASCII are escaped inside the JSON, and parsed by it. */
export function sqlJson(value: unknown): string {
  return `${constant(ascii(JSON.stringify(value)))}::pg_catalog.json`
}

/** A string constant of plain ASCII, which no setting and no encoding of either side can misread. */
function constant(value: string): string {
  return `E'${ascii(value.replaceAll('\\', '\\\\').replaceAll("'", "''"))}'`
}

function ascii(value: string): string {
  return value.replace(/[\u0080-\uffff]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`)
}
