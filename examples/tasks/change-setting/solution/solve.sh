#!/bin/sh
sed -i 's/^{{key}} = .*/{{key}} = {{value}}/' {{file}}
