#!/bin/sh
awk -F, 'NR > 1 { sum += $3 } END { print sum }' {{table}} > {{out}}
