/**
 * How many columns of a terminal a text takes, and texts cut to fit.
 *
 * @module
 */

/** Characters that take two columns: CJK, Hangul, fullwidth forms, emoji. */
const WIDE =
  /[\u1100-\u115f\u2e80-\u303e\u3041-\u33ff\u3400-\u4dbf\u4e00-\u9fff\ua000-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff60\uffe0-\uffe6]|\p{Emoji_Presentation}/u
/** Characters that take none, because they join the one before. */
const JOINED = /\p{Mark}|\u200b|\u200d|\ufe0f/u

function widthOfCharacter(character: string): number {
  if (JOINED.test(character)) return 0
  return WIDE.test(character) ? 2 : 1
}

export function textWidth(text: string): number {
  let width = 0
  for (const character of text) width += widthOfCharacter(character)
  return width
}

/** Exactly this many columns: cut with … at its end, or filled with spaces. */
export function fitted(text: string, columns: number): string {
  const width = textWidth(text)
  if (width <= columns) return text + ' '.repeat(columns - width)
  let shown = ''
  let used = 0
  for (const character of text) {
    const more = widthOfCharacter(character)
    if (used + more > columns - 1) break
    shown += character
    used += more
  }
  return `${shown}…${' '.repeat(Math.max(columns - used - 1, 0))}`
}
