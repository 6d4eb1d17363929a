# SPDX-License-Identifier: Apache-2.0
"""Where a program calls: "train.py:41 [64,1024]" for an operation, and the stack of a late rank."""
from __future__ import annotations

import ctypes
import os
import sys
import threading
from typing import Any, Dict, List, Tuple

import torch

from . import _lib
from ._lib import lib

OWN = tuple(
    os.path.dirname(os.path.abspath(path)) + os.sep
    for path in (torch.__file__, os.path.dirname(__file__))
)
_is_own: Dict[str, bool] = {}  # by file name: torch's and ours are not the program's
# By code object, instruction and shape; a code object stays here, so that its id() is unique.
_texts: Dict[Tuple[int, int, Any], Tuple[bytes, Any]] = {}
TEXTS_MAX = 4096


def _in_package(path: str) -> bool:
    known = _is_own.get(path)
    if known is None:
        known = _is_own[path] = path.startswith(OWN) or path.startswith("<frozen")
    return known


def program_frame(depth: int) -> Any:
    """The innermost frame of this thread, `depth` or more above the caller's, that is the
    program's; None where Python has called nothing, as in autograd's threads for devices."""
    try:
        frame: Any = sys._getframe(depth + 1)
    except ValueError:
        return None
    while _is_own.get(frame.f_code.co_filename) or _in_package(frame.f_code.co_filename):
        caller = frame.f_back
        if caller is None:
            break
        frame = caller
    return frame


def mark(shape: Any) -> None:
    """Names the operation that this thread starts next by the line of the program and its shape."""
    frame = program_frame(2)
    code = frame.f_code
    # Hashing a code object, and finding a line number, take longer than all the rest.
    key = (id(code), frame.f_lasti, shape)
    known = _texts.get(key)
    if known is None:
        if len(_texts) >= TEXTS_MAX:
            _texts.clear()
        name = os.path.basename(code.co_filename)
        dims = "" if shape is None else " [" + ",".join(map(str, shape)) + "]"
        text = f"{name}:{frame.f_lineno}{dims}".encode(errors="replace")
        known = _texts[key] = (text, code)
    lib.ls_comm_set_site(known[0])


def main_stack(program_only: bool = False) -> List[str]:
    """The calls of the main thread, the innermost first: "train.py:41 in step"."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    lines = []
    while frame is not None:
        path = frame.f_code.co_filename
        if not (program_only and _in_package(path)):
            lines.append(f"{os.path.basename(path)}:{frame.f_lineno} in {frame.f_code.co_name}")
        frame = frame.f_back
    return lines


@_lib.StackFn
def _write_stack(_arg: Any, text: int, size: int) -> None:
    data = "\n".join(main_stack()).encode(errors="replace")[: size - 1] + b"\0"
    ctypes.memmove(text, data, len(data))


def show_stack_when_late(comm: int) -> None:
    """The log of waiting ranks shows the Python stack of this rank's main thread."""
    _lib.check(lib.ls_comm_set_stack(comm, _write_stack, None))
