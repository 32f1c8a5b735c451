#!/bin/sh
echo 'echo $(($1 {{op}} $2))' > {{script}}
