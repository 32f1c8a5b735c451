#!/bin/sh
# Links are no files here: one could lead to what is expected.
archive={{archive}}.tar.gz
unpacked=$(mktemp -d)
reward=0
if [ -f "$archive" ] && [ ! -L "$archive" ] && [ ! -e {{folder}} ] && [ ! -L {{folder}} ] &&
  timeout 20 tar -xzf "$archive" -C "$unpacked" 2> /dev/null &&
  [ -z "$(find "$unpacked" ! -type f ! -type d)" ] && diff -r /tests/expected "$unpacked" > /dev/null; then
  reward=1
fi
echo "reward $reward"
echo "$reward" > /logs/verifier/reward.txt
