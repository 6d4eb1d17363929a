# SPDX-License-Identifier: Apache-2.0
"""peer.py: common parts of the scripts that compare Lockstep with PyTorch, which is tuned: malloc
settings that keep large blocks, no more threads than cores, and OpenBLAS if the Python is Debian's
and libopenblas0-pthread is installed."""
import glob
import json
import os
import re
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
# The Pythons that may have a PyTorch: the active one, that of ./check --full, and Debian's.
PYTHONS = ("python3", os.path.join(HERE, "..", "build", "torch", "bin", "python"),
           "/usr/bin/python3")


def torch_version(python, modules):
    """Of the PyTorch of a Python, as a list of numbers; None if a module is missing."""
    code = f"import {', '.join(modules)}; print(torch.__version__)"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    except OSError:
        return None
    return [int(n) for n in re.findall(r"\d+", done.stdout)[:3]] if done.returncode == 0 else None


def newest_python(asked, *modules):
    """The Python with the newest PyTorch that has these modules, or the one that was asked for.
    Prints it where there is an old one; None, and the reason, where there is none."""
    found = [(version, python) for python in ([asked] if asked else PYTHONS)
             for version in [torch_version(python, modules)] if version is not None]
    advice = "python3 -m venv build/torch && build/torch/bin/pip install torch torchvision"
    if not found:
        print(f"skipped: no Python with {' and '.join(modules)}: {advice}")
        return None
    version, python = max(found)
    if version < [2, 4]:
        print(f"PyTorch {'.'.join(map(str, version))} of {python} is old: {advice}",
              file=sys.stderr)
    return python


def find_python(asked, *modules):
    """As newest_python(); without one the program ends with 77."""
    python = newest_python(asked, *modules)
    if python is None:
        sys.exit(77)
    return python


def tuned(threads=1):
    """The environment of PyTorch's process."""
    blas = glob.glob("/usr/lib/*/openblas-pthread")  # which only Debian's PyTorch would load
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": str(threads),
        "MALLOC_MMAP_THRESHOLD_": "4294967296",
        "MALLOC_TRIM_THRESHOLD_": "17179869184",
        "MALLOC_TOP_PAD_": "268435456",
        **({"LD_LIBRARY_PATH": blas[0]} if blas else {}),
    }


def isa_limits(isa):
    """What limits oneDNN, our own kernels, PyTorch's and MKL to AVX2; "best": nothing."""
    if isa == "best":
        return {}
    return {"ONEDNN_MAX_CPU_ISA": "AVX2", "DNNL_MAX_CPU_ISA": "AVX2",
            "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}


def processor():
    """Its name, and the instruction sets that decide which kernels run."""
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        text = f.read()
    name = re.search(r"^model name\s*: (.*)", text, re.M)
    flags = re.search(r"^flags\s*: (.*)", text, re.M)
    flags = set(flags.group(1).split()) if flags else set()
    sets = [s for s in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if s in flags]
    return f"{name.group(1) if name else 'unknown processor'} ({', '.join(sets) or 'no AVX2'})"


def run(command, cores, environment=None):
    """The JSON object of the command's last line."""
    done = subprocess.run(
        ["taskset", "-c", str(cores)] + command, env=environment, capture_output=True, text=True
    )
    if done.returncode != 0:
        sys.exit(
            f"{os.path.basename(sys.argv[0])}: {' '.join(command)} failed: {done.stderr.strip()}"
        )
    return json.loads(done.stdout.strip().splitlines()[-1])


def spread(values, digits=0):
    median = statistics.median(values)
    return f"{median:.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"
