#!/bin/sh
# Links are no files here: one could lead to what is expected.
reward=0
if [ -d {{folder}} ] && [ ! -L {{folder}} ] && [ -z "$(find {{folder}} ! -type f ! -type d)" ] &&
  diff -r /tests/expected {{folder}} > /dev/null; then
  reward=1
fi
echo "reward $reward"
echo "$reward" > /logs/verifier/reward.txt
