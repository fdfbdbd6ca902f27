/** Brings every embedded.ts up to date, without touching those that are. */
export function embed(): void
