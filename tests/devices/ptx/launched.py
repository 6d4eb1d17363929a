#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""launched.py FILE FOLDER [--all] - how many kernels of FOLDER/*.ptx the FILE names, which tests of
the simulated card have written. With --all it fails unless it names all.
"""
import glob
import re
import sys


def kernels_of(folder):
    names = set()
    for path in glob.glob(f"{folder}/*.ptx"):
        with open(path, encoding="ascii") as source:
            names.update(re.findall(r"^\.entry _Z\d+(\w+)_on_card", source.read(), re.M))
    return names


def main(path, folder, must_be_all=False):
    kernels = kernels_of(folder)
    with open(path, encoding="ascii") as names:
        missing = kernels - set(names.read().split())
    print(f"{len(kernels) - len(missing)} of {len(kernels)} kernels were launched")
    if must_be_all and missing:
        sys.exit("never launched: " + ", ".join(sorted(missing)))


if __name__ == "__main__":
    main(*sys.argv[1:])
