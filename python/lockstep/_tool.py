# SPDX-License-Identifier: Apache-2.0
"""The command `lockstep` of the wheel: the tool lies in the package."""
import os
import sys

from . import __path__


def main() -> None:
    """Becomes the tool."""
    # An editable installation has two: of the sources, and of what was compiled.
    paths = [os.path.join(folder, "bin", "lockstep") for folder in __path__]
    path = next(filter(os.path.exists, paths), paths[0])
    try:
        os.execv(path, [path, *sys.argv[1:]])
    except OSError as error:
        raise SystemExit(
            f"lockstep: {path}: {error.strerror}: the tool is part of the installed package; "
            "from a source tree use build/bin/lockstep"
        ) from None
