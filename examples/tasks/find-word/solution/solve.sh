#!/bin/sh
grep -rlw {{word}} {{root}} > {{out}}
