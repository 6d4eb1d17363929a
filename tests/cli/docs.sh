#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# docs.sh PAGE BIN N [flags]: runs every command of a page, at least N: lines of four spaces and
# table cells that begin with one of our programs. "# exits with N" after a command is its exit
# code; lockstep check may find a problem of this machine. "# on MACHINE" marks one of several
# commands that run together ("# on each": twice); here they all run on this machine. With `flags`
# every flag of `lockstep run --help` must be on the page.
set -u
page=$(readlink -f "$1")
PATH=$2:$PATH
export PATH
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1

cat >train.py <<'SCRIPT'
import sys
print(*sys.argv[1:], flush=True)
SCRIPT
cp train.py script
printf '#!/bin/sh\nexit 0\n' >executable.py
chmod +x executable.py
cp executable.py mpi_program
cp executable.py open_mpi_program
cat >fail.py <<'SCRIPT'
import os, sys, time
if os.environ["RANK"] == "0":
    time.sleep(100)
sys.exit(3)
SCRIPT

# Machines behind ssh are this one.
mkdir bin
printf '#!/bin/sh\nwhile [ $# -gt 2 ]; do shift; done\nexec sh -c "$2"\n' >bin/ssh
chmod +x bin/ssh
# The page's mpirun needs no MPI to be installed.
printf '#!/bin/sh\n[ "$1" = -np ] && shift 2\nexec "$@"\n' >bin/mpirun
chmod +x bin/mpirun
PATH=$folder/bin:$PATH
printf 'node1 slots=1\nlocalhost slots=1\n' >hosts

failed=0
n=0
sed -n -e 's/^    \(\(lockstep\|torchrun\|mnist\|imagenet\) .*\)$/\1/p' \
    -e 's/^|.*| `\(lockstep run .*\)` |$/\1/p' "$page" >commands

# Machines of the page are this one; ports are free ones.
export HOME="$folder"
port=$((20000 + $$ % 10000))
start_machine() {
    command=$(printf '%s\n' "${1%%#*}" | sed "s/10\.0\.0\.1/127.0.0.1/g; s/:29400/:$port/")
    n=$((n + 1))
    PET_MASTER_PORT=$port PET_RDZV_CONF=last_call_timeout=0 \
        sh -c "timeout 60 $command" >"machine$n" 2>&1 </dev/null &
    machines="$machines $!:$n"
}
await_machines() {
    for machine in $machines; do
        wait "${machine%:*}" && continue
        echo "one of several machines failed:"
        sed 's/^/  /' "machine${machine#*:}"
        failed=1
    done
    machines=
    port=$((port + 1))
}

machines=
while IFS= read -r line; do
    case $line in
    *"# on each")
        await_machines
        start_machine "$line"
        start_machine "$line"
        await_machines
        continue
        ;;
    *"# on "*) start_machine "$line"; continue ;;
    esac
    await_machines
    # Where the kernel allows no namespaces that command cannot end well.
    case $line in *--isolate*) lockstep run --isolate true 2>/dev/null || continue ;; esac
    expected=0
    case $line in *"# exits with "*) expected=${line##*# exits with } ;; esac
    sh -c "${line%%#*}" >output 2>&1 </dev/null
    code=$?
    n=$((n + 1))
    case $line in "lockstep check "*) [ $code = 1 ] && code=0 ;; esac
    if [ $code != "$expected" ]; then
        echo "$line"
        echo "  exit code $code, not $expected:"
        sed 's/^/  /' output
        failed=1
    fi
done <commands
[ $n -ge "$3" ] || { echo "only $n commands on the page"; failed=1; }
echo "$n commands"
[ "${4:-}" = flags ] || exit $failed

lockstep run --help | sed -n 's/^ *\(-[a-z], \)\{0,1\}--\([a-z-]*\).*/\2/p' >flags
[ "$(wc -l <flags)" -ge 20 ] || { echo "help lists too few flags"; failed=1; }
while read -r flag; do
    grep -q -e "--$flag" "$page" || { echo "--$flag is not on the page"; failed=1; }
done <flags
exit $failed
