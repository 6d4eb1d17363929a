#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# readme.sh PAGE BIN: gives every command of README's section "Running" to its program with --help
# behind it, so that all flags are parsed and nothing is run. Hosts and mpirun are stand-ins.
set -u
page=$(readlink -f "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
mkdir bin
printf '#!/bin/sh\nwhile [ $# -gt 2 ]; do shift; done\nexec sh -c "$2"\n' >bin/ssh
printf '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift 2; done\nexec "$@"\n' >bin/mpirun
printf '#!/bin/sh\nexit 0\n' >bin/PROG
chmod +x bin/*
PATH=$folder/bin:$2:$PATH
export PATH

sed -n '/^## Running/,/^## What/p' "$page" | sed -e :join -e '/\\$/{N;s/\\\n//;bjoin' -e '}' |
    sed -n 's/^    \(\(lockstep\|mnist\|mpirun\|imagenet\) [^#]*\).*/\1/p' >commands
failed=0
n=0
while IFS= read -r command; do
    n=$((n + 1))
    if ! timeout 60 sh -c "$command --help" >output 2>&1 </dev/null; then
        echo "$command"
        sed 's/^/  /' output
        failed=1
    fi
done <commands
[ $n -ge 12 ] || { echo "only $n commands in the section"; failed=1; }
echo "$n commands"
exit $failed
