#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh SUITE [PYTHON]: runs test_SUITE.py; without PYTHON, that of LS_TEST_TORCH_PYTHON. 77: there
# is no torch.
python=${2:-${LS_TEST_TORCH_PYTHON:-}}
if [ -z "$python" ]; then
    echo "LS_TEST_TORCH_PYTHON is not set: no Python with a newer torch"
    exit 77
fi
if ! "$python" -c 'import torch.distributed' 2>/dev/null; then
    echo "$python has no torch"
    exit 77
fi
if [ "${LOCKSTEP_TORCH_FORM:-}" = cpp ] &&
    ! "$python" -c 'from lockstep.torch import _cpp; exit(_cpp.version() < _cpp.OLDEST)'; then
    echo "this torch has no C++ form"
    exit 77
fi
exec "$python" "$(dirname "$0")/test_$1.py"
