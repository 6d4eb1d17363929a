#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# lab_rsh.sh [OPTION...] 10.77.0.1I COMMAND...: replaces ssh for mpirun; runs the command on node I
# of the lab $LS_NETLAB.
while [ "${1#-}" != "$1" ]; do
    shift
done
node=$((${1##*.} - 10))
shift
exec "$LS_NETLAB_SH" exec "$node" sh -c "$*"
