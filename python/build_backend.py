# SPDX-License-Identifier: Apache-2.0
"""What pip calls to build the package: scikit-build-core, in the root of the source tree."""
import os
import subprocess
import sys

os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from scikit_build_core import build  # noqa: E402
from scikit_build_core.build import *  # noqa: E402, F401, F403


def build_wheel(*arguments, **named):
    """A failure ends with the packages of the system that the build needs."""
    try:
        return build.build_wheel(*arguments, **named)
    except BaseException:
        listed = subprocess.run(
            ["scripts/install-packages", "--list", "pip"], stdout=subprocess.PIPE, text=True
        )
        if listed.returncode == 0:
            print(
                "lockstep was not built. Are these packages installed?\n  sudo apt-get install",
                *listed.stdout.split(),
                file=sys.stderr,
            )
        raise
