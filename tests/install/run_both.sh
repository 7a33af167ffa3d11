#!/bin/sh
# Runs the consumers that were built in the folder.
set -e
"$1/engine"
"$1/engine_in_c"
