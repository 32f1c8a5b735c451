#!/bin/sh
sort -u {{list}} > {{out}}
