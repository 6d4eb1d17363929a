#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# other_major.sh SOURCE-DIR BUILD-DIR CC: builds the oneDNN device with oneDNN 3.x from PyPI
# (onednn-devel-cpu-gomp, for GNU OpenMP), runs its conformance and training tests, and trains the
# mnist program of both builds: the losses must agree. Exit 77: skipped, with a reason.
set -eu
source=$1
build=$2
cc=$3
targets="test_onednn test_onednn_chain test_precision test_devices test_resnet test_step"
targets="$targets test_sync_batch_norm"

grep -q '^LOCKSTEP_SANITIZE:STRING=..*' "$build/CMakeCache.txt" &&
    { echo "skipped: oneDNN itself is not sanitized"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" >/dev/null 2>&1 || { echo "skipped: python3-venv is needed"; exit 77; }
"$work/venv/bin/pip" install -q --no-deps onednn-devel-cpu-gomp onednn-cpu-gomp \
    >"$work/pip.log" 2>&1 ||
    { echo "skipped: pip cannot install oneDNN: $(tail -n 1 "$work/pip.log")"; exit 77; }

if cmake -G Ninja -S "$source" -B "$work/wrong" -DCMAKE_C_COMPILER="$cc" \
    -DLOCKSTEP_ONEDNN="$work/none" >"$work/wrong.log" 2>&1; then
    echo "a folder without oneDNN was taken"; exit 1
fi
tr -s '\n ' ' ' <"$work/wrong.log" |
    grep -q 'LOCKSTEP_ONEDNN=.*/none: .*is not there; fix: name the folder' ||
    { cat "$work/wrong.log"; exit 1; }

cmake -G Ninja -S "$source" -B "$work/build" -DCMAKE_C_COMPILER="$cc" -DLOCKSTEP_TESTS=ON \
    -DLOCKSTEP_WERROR=ON -DLOCKSTEP_ONEDNN="$work/venv" >"$work/cmake.log"
grep 'device onednn: with' "$work/cmake.log"
# shellcheck disable=SC2086 # targets are words
cmake --build "$work/build" -j2 --target mnist lockstep_onednn $targets >"$work/build.log" 2>&1 ||
    { tail -n 30 "$work/build.log"; exit 1; }
for test in $targets; do
    "$work/build/tests/$test" >"$work/$test.log" 2>&1 || { cat "$work/$test.log"; exit 1; }
    echo "$test passes with oneDNN 3.x"
done

[ -d /usr/share/datasets/fashion-mnist ] ||
    { echo "no training: dataset-fashion-mnist is needed"; exit 0; }
# train BUILD: the loss at the last step
train() {
    "$1/bin/mnist" --data /usr/share/datasets/fashion-mnist --steps 100 --lr 0.05 --momentum 0.9 \
        --seed 1 --metrics "$work/metrics.jsonl" >"$work/train.log" 2>&1 ||
        { cat "$work/train.log" >&2; exit 1; }
    sed -n 's/.*"step":100,.*"loss":\([0-9.]*\).*/\1/p' "$work/metrics.jsonl" | head -n 1
    rm "$work/metrics.jsonl"
}
ours=$(train "$build")
theirs=$(train "$work/build")
echo "loss after 100 steps: $ours here, $theirs with oneDNN 3.x"
# One step of rounding apart at the start, the two go apart by less than a twentieth.
awk -v a="$ours" -v b="$theirs" 'BEGIN { exit !(a > 0 && b > 0 && a < 1.05 * b && b < 1.05 * a) }'
