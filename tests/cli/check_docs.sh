#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_docs.sh PAGE BIN: runs every command of the page (lines of four spaces), which exits with 0
# or, if the machine has a problem, 1. Every flag of lockstep check and lockstep clean must be on
# the page.
set -u
page=$(readlink -f "$1")
PATH=$2:$PATH
export PATH
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1

# Machines behind ssh are this one.
mkdir bin
printf '#!/bin/sh\nwhile [ $# -gt 2 ]; do shift; done\nexec sh -c "$2"\n' >bin/ssh
chmod +x bin/ssh
PATH=$folder/bin:$PATH
printf 'node1 slots=8\nnode2 slots=2\n' >hosts

failed=0
n=0
sed -n 's/^    \(lockstep .*\)$/\1/p' "$page" >commands
while IFS= read -r line; do
    sh -c "${line%%#*}" >output 2>&1 </dev/null
    code=$?
    n=$((n + 1))
    if [ $code -gt 1 ]; then
        echo "$line"
        echo "  exit code $code:"
        sed 's/^/  /' output
        failed=1
    fi
done <commands
[ $n -ge 12 ] || { echo "only $n commands on the page"; failed=1; }

for command in check clean; do
    lockstep $command --help | sed -n 's/^ *\(-[a-z], \)\{0,1\}--\([a-z-]*\).*/\2/p' >flags
    [ -s flags ] || { echo "help of $command lists no flags"; failed=1; }
    while read -r flag; do
        grep -q -e "--$flag" "$page" || { echo "--$flag is not on the page"; failed=1; }
    done <flags
done
echo "$n commands"
exit $failed
