/** Bad usage: exit status 64, and nothing was touched. */
export class UsageError extends Error {}
