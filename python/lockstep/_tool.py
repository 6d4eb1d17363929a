# SPDX-License-Identifier: Apache-2.0
"""The command `lockstep` of the wheel: the tool lies in the package."""
import os
import sys


def main() -> None:
    """Becomes the tool."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "lockstep")
    try:
        os.execv(path, [path, *sys.argv[1:]])
    except OSError as error:
        raise SystemExit(
            f"lockstep: {path}: {error.strerror}: the tool is part of the wheel; from a source "
            "tree use build/bin/lockstep"
        ) from None
