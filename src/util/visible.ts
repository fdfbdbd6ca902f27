/**
 * Text of other processes, made fit to be shown.
 *
 * @module
 */

/**
 * Characters that a terminal obeys, and those that hide text or turn it around: C0, DEL and C1, soft hyphen, Arabic letter mark,
 * zero-width and direction marks, line separators, invisible operators, byte order mark, interlinear annotation.
 */
const UNFIT =
  // oxlint-disable-next-line no-control-regex -- they are what this looks for
  /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g

/** Such characters are shown as codes, which are also what JSON takes for them. `keep`: those that stay, such as line breaks. */
export function visible(text: string, keep = ''): string {
  return text.replace(UNFIT, (character) => {
    if (keep.includes(character)) return character
    return `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`
  })
}
