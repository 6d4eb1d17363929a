#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# data_docs.sh PAGE BIN: runs the commands of docs/data.md that need only the files of
# Fashion-MNIST, and compares its flags with --help. Conversions take 200 images of each class.
set -u
page=$(readlink -f "$1")
PATH=$2:$PATH
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1

failed=0
for flag in $(lockstep data --help | grep -o -e '--[a-z-]*' | sort -u); do
    [ "$flag" = --help ] || grep -q -e "\`.*$flag.*\`" "$page" || {
        echo "$flag is not in $page"
        failed=1
    }
done
[ -d /usr/share/datasets/fashion-mnist ] || {
    echo "skipped: dataset-fashion-mnist is not installed"
    exit 77
}
n=0
sed -n 's/^    \(lockstep data .*\)$/\1/p' "$page" | grep -v ' DIR' |
    sed '/ convert /{/--per-class/!s/$/ --per-class 200/}' >commands
while read -r command; do
    n=$((n + 1))
    sh -c "$command" >out 2>err || { echo "failed: $command"; cat out err; failed=1; }
done <commands
[ "$n" -ge 6 ] || { echo "only $n commands were found"; failed=1; }
grep -q '"images":2000' out || { echo "the last command prints another number"; cat out; failed=1; }
exit $failed
