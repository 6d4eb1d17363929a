#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# engines.sh BIN-DIR ENGINE LAUNCHER RANKS SCENES: starts $ENGINE_RANKS (engine_ranks). ENGINE is
# openmpi, mpich or gloo; LAUNCHER is mpirun, run, or newest: the mpirun and library of the folder
# that LS_TEST_OPENMPI or LS_TEST_MPICH names (a venv with PyPI's package). A scene that kills a
# rank must make the launcher fail, all others must not. Exit 77: something is missing.
set -eu
bin=$1 engine=$2 launcher=$3 ranks=$4 scenes=$5
program=$bin/tests/${ENGINE_RANKS:-engine_ranks}

skip() { echo "skipped: $*"; exit 77; }

case $engine in
gloo) backend=gloo module=$bin/lib/liblockstep_gloo.so ;;
*) backend=mpi module=$bin/lib/liblockstep_mpi-$engine.so ;;
esac
[ -e "$module" ] || skip "this build has no $engine"
[ "$scenes" != huge ] ||
    [ "$(awk '/MemAvailable/ {print $2}' /proc/meminfo)" -gt 12000000 ] ||
    skip "huge needs 12 GiB"

# Root may run Open MPI here, with more ranks than cores. Leaks of the libraries are ignored.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export ASAN_OPTIONS="${ASAN_OPTIONS:-}:detect_leaks=0"
export TSAN_OPTIONS="${TSAN_OPTIONS:-} suppressions=$(dirname "$0")/engines.supp"
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
case $launcher in
run) set -- "$bin/bin/lockstep" run -n "$ranks" ;;
mpirun)
    command -v "mpirun.$engine" >/dev/null || skip "no mpirun.$engine"
    set -- "mpirun.$engine" -np "$ranks"
    [ "$engine" = mpich ] || set -- "$@" --oversubscribe
    ;;
newest)
    case $engine in
    openmpi) folder=${LS_TEST_OPENMPI:-} ;;
    *) folder=${LS_TEST_MPICH:-} ;;
    esac
    [ -n "$folder" ] || skip "LS_TEST_OPENMPI or LS_TEST_MPICH does not name a folder"
    # Debian's MPICH has another SONAME than all others, and the same ABI.
    ln -s "$folder/lib/libmpi.so.12" "$out/libmpich.so.12"
    export LD_LIBRARY_PATH="$out:$folder/lib:$folder/lib/mpich"
    set -- "$folder/bin/mpirun" -np "$ranks"
    [ "$engine" = mpich ] || set -- "$@" --oversubscribe
    ;;
esac

status=0
"$@" "$program" "$backend" "$scenes" "$ranks" >"$out/text" 2>&1 || status=$?
fail() { cat "$out/text"; echo "$*"; exit 1; }
case $scenes in
*death*)
    [ $status -ne 0 ] || fail "a rank was killed, and no rank reported it"
    ! grep -qE 'does not hold|Sanitizer|runtime error' "$out/text" ||
        fail "a survivor did not report the cause"
    ;;
abort_all | mismatch) # MPI's launchers differ about ranks that exit without MPI_Finalize
    ! grep -qE 'does not hold|No such file|Alarm clock|Segmentation|Sanitizer|runtime error' \
        "$out/text" || fail "a rank did not report the cause"
    grep -q 'all scenes held' "$out/text" || fail "no rank came to its end"
    ;;
*) [ $status -eq 0 ] || fail "status $status" ;;
esac
