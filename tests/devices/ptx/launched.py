#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""launched.py FILE FOLDER [--all] - how many kernels of FOLDER/*.ptx the FILE names, which tests of
the simulated card have written. With --all it fails unless it names all but UNREACHED.
"""
import glob
import re
import sys

# Each kernel is made for all types, but autograd calls these with float32 and float64 alone.
UNREACHED = {f"{name}_{kind}" for kind in ("bf16", "f16") for name in (
    "class_sums", "embedding", "embedding_backward", "log_softmax", "log_softmax_backward", "mse",
    "mse_backward", "nll", "nll_backward", "softmax", "softmax_backward")}


def kernels_of(folder):
    names = set()
    for path in glob.glob(f"{folder}/*.ptx"):
        with open(path, encoding="ascii") as source:
            names.update(re.findall(r"^\.entry _Z\d+(\w+)_on_card", source.read(), re.M))
    return names


def main(path, folder, must_be_all=False):
    kernels = kernels_of(folder)
    with open(path, encoding="ascii") as names:
        seen = set(names.read().split())
    print(f"{len(kernels & seen)} of {len(kernels)} kernels were launched")
    missing = kernels - seen - UNREACHED
    if must_be_all and missing:
        sys.exit("never launched: " + ", ".join(sorted(missing)))


if __name__ == "__main__":
    main(*sys.argv[1:])
