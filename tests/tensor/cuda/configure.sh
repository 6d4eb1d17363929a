#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# configure.sh SOURCE-DIR: without the CUDA toolkit the project is configured without the device,
# with a line that says so, and LOCKSTEP_CUDA=ON is an error.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
PATH=/usr/bin:/bin # without nvcc
export PATH
unset CUDACXX CUDA_PATH
if command -v nvcc >/dev/null; then
    echo "skipped: there is an nvcc in /usr/bin"
    exit 77
fi
configure() { cmake -G Ninja -S "$1" -B "$work/$2" -DLOCKSTEP_CUDA="$2" >"$work/log" 2>&1; }

configure "$1" AUTO || { cat "$work/log" >&2; exit 1; }
grep -q 'device cuda: not built (needs the CUDA toolkit 12 or 13 with cuDNN 9)' "$work/log" ||
    { cat "$work/log" >&2; exit 1; }
if configure "$1" ON; then
    echo "LOCKSTEP_CUDA=ON is configured without a toolkit" >&2
    exit 1
fi
tr -s ' \n' ' ' <"$work/log" | grep -q 'device cuda: needs the CUDA toolkit 12 or 13 with cuDNN' ||
    { cat "$work/log" >&2; exit 1; }
