#!/bin/sh
# What the script prints goes into a file of limited size, and its time is limited: a script that
# does not end, or prints without end, is a wrong script and not a broken verifier.
said=$(mktemp)
prints() {
  (ulimit -f 8; timeout 5 sh {{script}} "$1" "$2" < /dev/null > "$said" 2> /dev/null)
  [ "$(head -c 100 "$said")" = "$(($1 {{op}} $2))" ]
}
reward=0
if [ -f {{script}} ] && prints 7 5 && prints 2 2 && prints 12 40 && prints 0 9 && prints 31 1; then
  reward=1
fi
echo "reward $reward"
echo "$reward" > /logs/verifier/reward.txt
