#!/bin/sh
# Builds and runs the C++ consumer with nothing but a compiler and pkg-config. Arguments: prefix, compiler, scratch folder.
set -e
PKG_CONFIG_PATH=$(dirname "$(find "$1" -name locks.pc)")
export PKG_CONFIG_PATH
flags=$(pkg-config --cflags --libs locks)
# shellcheck disable=SC2086 # the flags are words
"$2" -std=c++20 -O1 "$(dirname "$0")/consumer/engine.cc" -o "$3/pkg_config_engine" $flags
"$3/pkg_config_engine"
