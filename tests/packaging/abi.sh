#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# abi.sh SOURCE-DIR BUILD-DIR CC: check-abi separates compatible changes of a small library from
# others, and compares this build with the last release where there is one.
set -eu
check=$1/packaging/check-abi
build=$2
cc=$3
command -v abidiff >/dev/null || { echo "skipped: needs abidiff"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# library NAME SONAME FIRST-FIELD OPTIONS-END FUNCTIONS: an installed tree
library() {
    mkdir -p "$work/$1/include/lockstep" "$work/$1/lib"
    cat >"$work/$1/include/lockstep/a.h" <<HEADER
#include <stddef.h>
typedef struct ls_a_options {
    size_t size;
    int x; $4
} ls_a_options;
typedef struct ls_a {
    $3 y;
} ls_a;
HEADER
    {
        echo '#include <lockstep/a.h>'
        echo 'int ls_a_make(const ls_a_options *o, const ls_a *a) { return o->x + (int)a->y; }'
        for function in $5; do echo "int $function(void) { return 1; }"; done
    } >"$work/$1/a.c"
    "$cc" -g -shared -fPIC -w -Wl,-soname,"$2" -I "$work/$1/include" \
        -o "$work/$1/lib/liblockstep.so" "$work/$1/a.c"
}
good() { "$check" "$work/old" "$work/$1" || { echo "$1 is not compatible"; exit 1; }; }
bad() { ! "$check" "$work/old" "$work/$1" >/dev/null 2>&1 || { echo "$1 passes"; exit 1; }; }

library old liblockstep.so.1 int '' ls_b
library same liblockstep.so.1 int '' ls_b
library more liblockstep.so.1 int 'int more;' 'ls_b ls_c'
library less liblockstep.so.1 int '' ''
library wider liblockstep.so.1 long '' ls_b
library renamed liblockstep.so.2 long '' ''
good same
good more
bad less
bad wider
good renamed
echo "check-abi: all as expected"

code=0
"$check" "$build" || code=$?
[ $code = 77 ] || exit $code
