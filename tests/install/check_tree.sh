#!/bin/sh
# What an installed tree must hold. No public header may need a private one, or a library that users need not have.
set -e
cd "$1"
bin/locks --version
find . -name liblocks.a | grep -q .
find . -name locksConfigVersion.cmake | grep -q .
for header in include/locks/*.h; do
  printf '#include <locks/%s>\n' "$(basename "$header")" | c++ -std=c++20 -fsyntax-only -Wall -Werror -Iinclude -x c++ -
done
echo "$(find include -name '*.h' | wc -l) headers stand alone"
# The scripts of this tree, not those of the source tree that may lie around it.
LOCKS_PYTHON=echo LOCKS_EVALS="" bin/locks eval --tasks | grep -qxF "$(pwd -P)/share/locks/evals/run.py --tasks"
