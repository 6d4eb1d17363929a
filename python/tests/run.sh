#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh PYTHON SUITE [ARGUMENT...]: runs test_SUITE.py; PYTHON "": that of LS_TEST_TORCH_PYTHON.
# 77: no torch.
python=${1:-${LS_TEST_TORCH_PYTHON:-}}
suite=$2
shift 2
if [ -z "$python" ]; then
    echo "LS_TEST_TORCH_PYTHON is not set: no Python with a newer torch"
    exit 77
fi
if ! "$python" -c 'import torch.distributed' 2>/dev/null; then
    echo "$python has no torch"
    exit 77
fi
exec "$python" "$(dirname "$0")/test_$suite.py" "$@"
