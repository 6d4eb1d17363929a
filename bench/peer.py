# SPDX-License-Identifier: Apache-2.0
"""peer.py: common parts of the scripts that compare a training step with PyTorch's.

PyTorch is tuned: channels_last, one thread, malloc settings that keep large blocks, and OpenBLAS if
Debian's libopenblas0-pthread is installed or the caller names the folder of its libblas.so.3.
"""
import glob
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
TUNING = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "17179869184",
    "MALLOC_TOP_PAD_": "268435456",
}
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else "python3"


def openblas_folder(asked):
    found = glob.glob("/usr/lib/*/openblas-pthread")
    return asked or (found[0] if found else "")


def skip_without(*modules):
    for module in modules:
        if subprocess.run([PYTHON, "-c", f"import {module}"], capture_output=True).returncode != 0:
            print(f"skipped: {module} is missing (apt-get install python3-{module})")
            sys.exit(77)


def tuned(blas):
    """The environment of PyTorch's process."""
    return {**os.environ, **TUNING, **({"LD_LIBRARY_PATH": blas} if blas else {})}


def run(command, core, environment=None):
    """The JSON object of the command's last line."""
    done = subprocess.run(
        ["taskset", "-c", str(core)] + command, env=environment, capture_output=True, text=True
    )
    if done.returncode != 0:
        sys.exit(
            f"{os.path.basename(sys.argv[0])}: {' '.join(command)} failed: {done.stderr.strip()}"
        )
    return json.loads(done.stdout.strip().splitlines()[-1])


def spread(values, digits=0):
    median = statistics.median(values)
    return f"{median:.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"
