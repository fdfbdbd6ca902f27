export interface SourceFile {
  file: string
  text: string
}
export function sourcesIn(root: string, folder?: string, pattern?: RegExp): SourceFile[]
export function importsOf(source: SourceFile): string[]
export function importGraph(files: readonly SourceFile[]): Map<string, Set<string>>
export function cyclesIn(graph: ReadonlyMap<string, ReadonlySet<string>>): string[][]
export function homonymsIn(
  files: readonly SourceFile[],
  options?: { exported?: boolean },
): { name: string; files: string[] }[]
