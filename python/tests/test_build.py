# SPDX-License-Identifier: Apache-2.0
"""The C++ form compiles for the installed torch and loads."""
import sys

from lockstep.torch import _cpp, build


def main():
    if _cpp.version() < _cpp.OLDEST:
        print("the C++ form needs torch {}.{}".format(*_cpp.OLDEST))
        return 77
    print(build.build(_cpp.cache_folder()))
    usable, reason = _cpp.available()
    assert usable, reason
    return 0


if __name__ == "__main__":
    sys.exit(main())
