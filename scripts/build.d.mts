/** Builds dist/ if any source is newer than what was built from it. */
export function ensureBuilt(): void
