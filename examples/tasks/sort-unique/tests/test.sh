#!/bin/sh
# A FIFO or a link in its place is no answer.
reward=0
if [ -f {{out}} ] && [ ! -L {{out}} ] && cmp -s /tests/expected.txt {{out}}; then reward=1; fi
echo "reward $reward"
echo "$reward" > /logs/verifier/reward.txt
