#!/bin/sh
grep -c {{word}} {{log}} > {{out}}
