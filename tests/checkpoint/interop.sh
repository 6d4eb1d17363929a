#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# interop.sh SCRIPT CHECKPOINT_COPY: runs SCRIPT with the first Python that has safetensors.
for python in "${LS_TEST_PYTHON:-python3}" /usr/bin/python3; do
    if command -v "$python" >/dev/null &&
        "$python" -c 'import numpy, safetensors.numpy' 2>/dev/null; then
        exec "$python" "$(dirname "$0")/$1" "$2"
    fi
done
echo "skipped: no Python with the packages numpy and safetensors"
exit 77
