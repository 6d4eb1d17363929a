#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# paced.sh LOCKSTEP PACED-LIBRARY: with 20 MB/s for each connection, four connections carry at least
# 2.5 times as much as one.
set -eu
lockstep=$1 library=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# rate OPERATION CONNECTIONS: bus bandwidth in GB/s
rate() {
    rm -f "$work/rows"
    LD_PRELOAD=$library PACED_BYTES=20000000 LOCKSTEP_CONNECTIONS=$2 \
        "$lockstep" bench "$1" -g 2 --transport tcp -b 4M -e 4M -w 1 -n 3 -c 0 -J "$work/rows" \
        >"$work/text" 2>&1 || { cat "$work/text"; exit 1; }
    sed -n 's/.*"bus_bw": *\([0-9.e+-]*\).*/\1/p' "$work/rows" | head -n 1
}

for operation in sendrecv all_reduce; do
    one=$(rate $operation 1) four=$(rate $operation 4)
    echo "$operation: $one GB/s over one connection, $four over four"
    awk -v one="$one" -v four="$four" \
        'BEGIN { exit !(one > 0.01 && one < 0.03 && four >= 2.5 * one) }'
done
