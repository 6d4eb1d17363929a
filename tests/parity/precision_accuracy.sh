#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# precision_accuracy.sh BIN-DIR: trains the ConvNet on Fashion-MNIST for two epochs in each
# precision with the same seed. The test accuracies of bf16 and fp16 must be within 0.3 points of
# that of fp32. Exit 77: skipped, with a reason.
set -eu
data=/usr/share/datasets/fashion-mnist

[ -d "$data" ] || { echo "skipped: dataset-fashion-mnist is not installed"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# accuracy BIN-DIR PRECISION
accuracy() {
    "$1/mnist" --data "$data" --epochs 2 --schedule cosine --seed 1 --precision "$2" \
        >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
    sed -n 's/^test accuracy \(0\.[0-9]*\) after 2 epochs .*/\1/p' "$work/log"
}
exact=$(accuracy "$1" fp32)
for precision in bf16 fp16; do
    got=$(accuracy "$1" "$precision")
    echo "test accuracy $exact in fp32, $got in $precision"
    awk -v a="$exact" -v b="$got" \
        'BEGIN { exit !(a > 0.85 && b > 0.85 && a - b <= 0.003 && b - a <= 0.003) }' ||
        { echo "$precision is more than 0.3 points away from fp32"; exit 1; }
done
