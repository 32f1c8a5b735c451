#!/bin/sh
# A FIFO or a link in its place is no answer.
said=
if [ -f {{out}} ] && [ ! -L {{out}} ]; then said=$(head -c 1000 {{out}}); fi
reward=0
if [ "$said" = {{path}} ]; then reward=1; fi
echo "reward $reward"
echo "$reward" > /logs/verifier/reward.txt
