#!/bin/sh
tar -czf {{archive}}.tar.gz {{folder}} && rm -r {{folder}}
