#!/bin/sh
# A FIFO or a link in its place is no answer.
reward=0
if [ -f {{file}} ] && [ ! -L {{file}} ] && cmp -s /tests/expected.txt {{file}}; then reward=1; fi
echo "reward $reward"
echo "$reward" > /logs/verifier/reward.txt
