#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles test_nccl_types.c with the header of pip's package of NCCL, which is part of PyTorch's.
#
#     nccl_types.sh COMPILER SOURCES CUDA_INCLUDE
set -euo pipefail

compiler=$1
root=$2
cuda=$3

python=${LS_TEST_TORCH_PYTHON:-}
if [ -z "$python" ]; then
    echo "skipped: LS_TEST_TORCH_PYTHON names no Python with PyTorch (./check --full)"
    exit 77
fi
found=$("$python" -c "import nvidia.nccl as n; print(list(n.__path__)[0])" 2>/dev/null) || {
    echo "skipped: $python has no package of NCCL"
    exit 77
}
grep "define NCCL_VERSION_CODE" "$found/include/nccl.h"
"$compiler" -std=gnu11 -Wall -Werror -fsyntax-only -I"$root/include" -I"$root/src" -I"$root/tests" \
    -isystem "$found/include" -isystem "$cuda" "$root/tests/comm/test_nccl_types.c"
