#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# libraries.sh MODULE: the CUDA device needs cuDNN and cuBLASLt, but neither the driver, so that it
# loads on machines without one, nor the C++ library; and it exports its entry alone.
set -eu
needed=$(readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
for library in libcudnn.so.9 libcublasLt.so; do
    echo "$needed" | grep -q "^$library" || { echo "$1 does not need $library" >&2; exit 1; }
done
if echo "$needed" | grep -E '^(libcuda|libstdc\+\+|libcublas|libnvrtc)\.so' >&2; then
    echo "$1 must not need these" >&2
    exit 1
fi
exported=$(nm -D --defined-only "$1" | awk '{print $3}' | grep -vE '^(_init|_fini)$')
if [ "$exported" != lockstep_device ]; then
    echo "$1 exports: $exported" >&2
    exit 1
fi
