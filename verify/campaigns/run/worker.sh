# worker.sh JOURNAL TOKEN stubborn|polite   writes its holder's token into the journal every 10 ms until something ends it
[ "$3" = stubborn ] && trap '' TERM INT HUP
read -r stat </proc/$$/stat
fields=(${stat##*) })
echo "$2 $$ ${fields[19]}" >>"$1.workers"
# A read that times out is a pause without a process of its own.
exec 3<>"$1.pause"
while [ $SECONDS -lt 60 ]; do
  echo "$2" >>"$1"
  read -rt 0.01 -u 3
done
