# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own tests of torch.distributed pass on 2 and 3 ranks, in both forms."""
import importlib.util
import os
import subprocess
import sys
import tempfile

from lockstep.torch import _cpp

HERE = os.path.dirname(os.path.abspath(__file__))


def main():
    if importlib.util.find_spec("expecttest") is None:
        print("PyTorch's tests need expecttest (pip install expecttest)")
        return 77
    forms = ["cpp", "python"] if _cpp.available()[0] else ["python"]
    if len(forms) == 1:
        print("the C++ form is left out:", _cpp.available()[1])
    with tempfile.TemporaryDirectory() as folder:
        words = ["run", os.path.join(folder, "results.json"), "--forms", *forms]
        tool = os.path.join(HERE, "..", "tools", "pytorch_tests.py")
        return subprocess.run([sys.executable, tool, *words]).returncode


if __name__ == "__main__":
    sys.exit(main())
