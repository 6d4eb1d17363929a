#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh BUILD-DIR CC: installs the build and compiles a program outside the tree against it, once with pkg-config, once
# with CMake's find_package.
set -eu
build=$1
cc=$2
here=$(cd "$(dirname "$0")" && pwd)
grep -q '^LOCKSTEP_SANITIZE:STRING=..*' "$build/CMakeCache.txt" && { echo "skipped: a sanitized library needs a sanitized program"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/prefix" >/dev/null
pc=$(find "$work/prefix" -name lockstep.pc)
lib=$(dirname "$(dirname "$pc")")
export LD_LIBRARY_PATH="$lib"
unset LOCKSTEP_MODULE_DIR RANK WORLD_SIZE LOCAL_RANK

# shellcheck disable=SC2046 # flags are words
PKG_CONFIG_PATH=$(dirname "$pc") "$cc" -o "$work/by-pkg-config" "$here/outside.c" \
    $(PKG_CONFIG_PATH=$(dirname "$pc") pkg-config --define-variable=prefix="$work/prefix" --cflags --libs lockstep)
test "$("$work/by-pkg-config")" = "lockstep 0.1.0: 1.5"

mkdir "$work/outside"
cp "$here/outside.c" "$work/outside/"
cat >"$work/outside/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.16)
project(outside C)
find_package(lockstep REQUIRED)
add_executable(by-cmake outside.c)
target_link_libraries(by-cmake lockstep::lockstep)
CMAKE
cmake -G Ninja -S "$work/outside" -B "$work/outside/build" -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_C_COMPILER="$cc" >/dev/null
cmake --build "$work/outside/build" >/dev/null
test "$("$work/outside/build/by-cmake")" = "lockstep 0.1.0: 1.5"

for program in lockstep mnist message_passing elastic_ddp; do
    test -x "$work/prefix/bin/$program" || { echo "bin/$program is not installed" >&2; exit 1; }
done
"$work/prefix/bin/mnist" --help >/dev/null
