#!/bin/sh
cd {{folder}} || exit 1
for file in *.{{old}}; do
  mv "$file" "${file%.{{old}}}.{{new}}"
done
