# holder.sh JOURNAL SHAPE stubborn|polite SECONDS|forever   the command of one `leasehold run`
journal=$1 shape=$2 temper=$3 lasts=$4
here=$(dirname "$0") token=$LEASEHOLD_FENCING_TOKEN
touch "$journal.workers"
[ -p "$journal.pause" ] || mkfifo "$journal.pause"
# First of all: a worker of an earlier holder that is alive now is an overlap, even if it does nothing.
while read -r its pid start; do
  if [ "$its" != "$token" ] && { read -r stat </proc/$pid/stat; } 2>/dev/null; then
    fields=(${stat##*) })
    [ "${fields[0]}" != Z ] && [ "${fields[0]}" != X ] && [ "${fields[19]}" = "$start" ] && echo "overlap $its $token $pid"
  fi
done <"$journal.workers"
echo "$token" >>"$journal"
[ "$temper" = stubborn ] && [ "$lasts" != term ] && trap '' TERM INT HUP
worker() { bash "$here/worker.sh" "$journal" "$token" "$temper"; }
case $shape in
  timeout) timeout 50 bash "$here/worker.sh" "$journal" "$token" "$temper" & ;;
  set-m) set -m; worker & worker & set +m ;;
  background) worker & worker & ;;
  # Without our environment, and with a parent that is gone.
  orphan) (set -m; env -i PATH="$PATH" bash "$here/worker.sh" "$journal" "$token" "$temper" &) ;;
esac
# Not before a worker works: a holder that dies earlier would prove nothing.
until grep -q "^$token " "$journal.workers"; do sleep 0.02; done
echo "started $token"
if [ "$lasts" = forever ] || [ "$lasts" = term ]; then
  # Again in the foreground of a group of its own, as scripts do it.
  timeout 50 bash "$here/worker.sh" "$journal" "$token" "$temper"
  exec sleep 50
fi
sleep "$lasts"
exit 7
