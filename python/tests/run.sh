#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh SUITE PYTHON [ARGUMENT...]: runs test_SUITE.py; PYTHON "new": that of LS_TEST_TORCH_PYTHON.
# 77: there is no torch.
suite=$1
python=$2
shift 2
if [ "$python" = new ]; then
    python=${LS_TEST_TORCH_PYTHON:-}
fi
if [ -z "$python" ]; then
    echo "LS_TEST_TORCH_PYTHON is not set: no Python with a newer torch"
    exit 77
fi
if ! "$python" -c 'import torch.distributed' 2>/dev/null; then
    echo "$python has no torch"
    exit 77
fi
exec "$python" "$(dirname "$0")/test_$suite.py" "$@"
