# SPDX-License-Identifier: Apache-2.0
"""python -m lockstep.torch.build [--output FOLDER]: compiles the C++ form.

It needs g++ or clang++ (or CXX) and the headers of the installed torch, and takes about a minute.
"""
from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from typing import List

import torch

from . import _cpp, _lib

HERE = os.path.dirname(os.path.abspath(__file__))


def _compiler() -> List[str]:
    chosen = os.environ.get("CXX")
    if chosen:
        return shlex.split(chosen)
    for name in ("g++", "clang++"):
        if shutil.which(name):
            return [name]
    raise SystemExit("lockstep.torch.build: no C++ compiler: install g++, or set CXX")


def command(library: str, headers: str, output: str) -> List[str]:
    """The command that compiles adapter.cpp for the installed torch."""
    base = os.path.dirname(os.path.abspath(torch.__file__))
    include = os.path.join(base, "include")
    return [
        *_compiler(),
        "-std=c++20" if _cpp.version() >= (2, 12) else "-std=c++17",
        "-O2",
        "-fPIC",
        "-shared",
        "-s",
        "-fvisibility=hidden",
        "-I" + headers,
        "-isystem",
        include,
        "-isystem",
        os.path.join(include, "torch", "csrc", "api", "include"),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        os.path.join(HERE, "adapter.cpp"),
        "-o",
        output,
        "-L" + os.path.join(base, "lib"),
        "-ltorch_cpu",
        "-lc10",
        library,
        "-Wl,-rpath,$ORIGIN/../lib",
    ]


def _library() -> str:
    """The loaded liblockstep, as a word of the linker."""
    name = _lib.lib._name
    return os.path.realpath(name) if "/" in name else "-l:" + name


def headers_folder() -> str:
    """The folder with lockstep/comm.h: of the package (wheel), or of the source tree."""
    package = os.path.dirname(HERE)
    for folder in (
        os.path.join(package, "include"),
        os.path.join(os.path.dirname(os.path.dirname(package)), "include"),
    ):
        if os.path.exists(os.path.join(folder, "lockstep", "comm.h")):
            return folder
    raise SystemExit("lockstep.torch.build: the headers of liblockstep are not in this package")


def build(folder: str) -> str:
    """Compiles the module and puts it into `folder`; its path."""
    if _cpp.version() < _cpp.OLDEST:
        raise SystemExit(
            f"lockstep.torch.build: torch {torch.__version__} has the Python form only; the C++ "
            "form needs {}.{} or newer".format(*_cpp.OLDEST)
        )
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, _cpp.file_name())
    with tempfile.TemporaryDirectory(dir=folder) as work:
        made = os.path.join(work, _cpp.file_name())
        words = command(_library(), headers_folder(), made)
        print(" ".join(shlex.quote(word) for word in words), file=sys.stderr)
        if subprocess.run(words).returncode != 0:
            raise SystemExit("lockstep.torch.build: the compiler failed")
        os.replace(made, path)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m lockstep.torch.build",
        description="Compiles the C++ form of the backend for the installed torch.",
    )
    parser.add_argument(
        "--output", metavar="FOLDER", default=_cpp.cache_folder(), help="default: the user's cache"
    )
    print(build(parser.parse_args().output))


if __name__ == "__main__":
    main()
