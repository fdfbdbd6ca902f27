/**
 * As PID 1 of a container a process inherits every orphan and has to collect it when it dies. Node collects only its own
 * children, so the others would pile up as zombies: a shell replaces PID 1, and starts this program anew below it.
 *
 * @module
 */
import { accessSync, constants } from 'node:fs'

const SHELL = '/bin/sh'

/**
 * A script that runs its arguments, passes signals on to them and exits with their status. `wait` collects orphans
 * meanwhile. It returns early on a signal, so its status is the child's only when the child is gone (`kill -0` counts a
 * zombie as there). Without descriptor 3 the child would read from /dev/null: a shell gives that to background commands.
 */
export const INIT = `exec 3<&0
"$@" <&3 3<&- &
child=$!
exec 3<&-
for signal in HUP INT QUIT USR1 USR2 TERM; do trap "kill -$signal $child" $signal; done
while :; do
  wait $child
  status=$?
  kill -0 $child 2>/dev/null || exit $status
done`

/** Does not return if a shell takes over. Node can replace itself by another program since 22.15. */
export function leavePid1ToShell(): void {
  const { execve } = process as { execve?: (file: string, args: readonly string[], env: NodeJS.ProcessEnv) => never }
  if (process.pid !== 1 || !execve || !isExecutable(SHELL)) return
  const program = [process.execPath, ...process.execArgv, ...process.argv.slice(1)]
  execve.call(process, SHELL, ['sh', '-c', INIT, 'leasehold', ...program], process.env)
}

/** Checked first, because an `execve` that fails aborts the process. */
function isExecutable(file: string): boolean {
  try {
    accessSync(file, constants.X_OK)
    return true
  } catch {
    return false
  }
}
