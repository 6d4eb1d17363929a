# SPDX-License-Identifier: Apache-2.0
"""The end of a process: other ranks get the type and text of an exception that ends a rank.

The hook of uncaught exceptions aborts the groups before it passes the exception on. Processes of
multiprocessing catch exceptions themselves; there a finalizer looks at the exception that is being
handled. At the end of the interpreter all groups are left, after which the library calls no Python.
"""
from __future__ import annotations

import atexit
import multiprocessing.util
import os
import sys
import traceback
from types import TracebackType
from typing import Any, Optional, Type

from . import _join

TEXT_MAX = 400


def describe(error: BaseException) -> str:
    """ "ValueError: text (train.py:12, in step)": the last place in the program's own code."""
    text = str(error).split("\n")[0][:TEXT_MAX]
    name = type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "site-packages" not in frame.filename] or frames
    place = ""
    if own:
        place = f" ({os.path.basename(own[-1].filename)}:{own[-1].lineno}, in {own[-1].name})"
    return f"{name}: {text}{place}" if text else f"{name}{place}"


def report(error: Optional[BaseException]) -> None:
    """Aborts the groups of this process with the exception as the reason."""
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return
    for comm in _join.live_comms():
        comm.abort(describe(error))


def _at_exit_of_child() -> None:
    """In a process of multiprocessing, which may be handling an exception."""
    error: Any = sys.exc_info()[1]
    if isinstance(error, SystemExit):
        error = error.__context__  # torch.multiprocessing.spawn() turns exceptions into exit codes
    report(error)
    _join.close_all()


def _finalize_process(_module: Any = None) -> None:
    multiprocessing.util.Finalize(None, _at_exit_of_child, exitpriority=100)


def install() -> None:
    """Once, at the import of the package."""
    previous = sys.excepthook

    def hook(
        kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]
    ) -> None:
        report(error)
        previous(kind, error, trace)

    sys.excepthook = hook
    _finalize_process()
    # A process of multiprocessing forgets the finalizers that it has when it begins: those of its
    # parent, and those of the modules that its main module imports.
    multiprocessing.util.register_after_fork(sys.modules[__name__], _finalize_process)
    atexit.register(_join.close_all)
