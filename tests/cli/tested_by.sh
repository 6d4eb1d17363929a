#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tested_by.sh PAGE TESTS: the last cell of a table row of the page names the tests of the row, by
# file (`test_run.c`:) and functions, and all of them exist below the folder TESTS.
set -u
page=$1 tests=$2
failed=0

fail() {
    echo "$page: $*" >&2
    failed=1
}

rows=$(grep '^| ' "$page" | grep -v '^| known command ')
[ -n "$rows" ] || fail "there is no table"
IFS='
'
for row in $rows; do
    cell=${row%|}
    cell=${cell##*|}
    file= n=0
    for name in $(printf '%s\n' "$cell" | grep -oE '`[A-Za-z0-9_.]+`' | tr -d '`'); do
        case $name in
        *.c | *.py) file=$(find "$tests" -name "$name") ;;
        *)
            n=$((n + 1))
            [ -n "$file" ] && grep -qwE "(void|def) $name" $file || fail "no test $name in: $row"
            ;;
        esac
    done
    [ $n -gt 0 ] || fail "no test is named in: $row"
done
exit $failed
