# SPDX-License-Identifier: Apache-2.0
"""The C++ form: a c10d::Backend of adapter.cpp, compiled for one minor version of torch.

The module of the installed torch lies in the installed package or in the cache of the user, where
`python -m lockstep.torch.build` puts it. A group stays the Python object that joined it, and
adapter.cpp calls back when its backend has gone.
"""
from __future__ import annotations

import ctypes
import functools
import hashlib
import os
from datetime import timedelta
from typing import Any, Dict, List, Tuple

import torch
import torch.distributed as dist
from torch import library

from . import __path__, _join, _monitored, _refusals, _site, _sparse, _types

# Since this version the virtual functions of c10d::Backend exist that adapter.cpp overrides, and
# blocking calls may return no work.
OLDEST = (2, 10)

_ENDED = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_bool)


class _Group:
    """A group whose backend is in C++."""

    def __init__(self, comm: Any, store: Any) -> None:
        self.comm = comm
        self.store = store
        self.barrier = _monitored.Barrier(store, comm.rank, comm.size)


_groups: Dict[int, _Group] = {}  # by the number that is the ls_comm's address
_loaded: Dict[str, str] = {}  # the module's path: why it cannot be used, or ""
_operators: List[Any] = []  # libraries of operators in Python, which are removed with the object


def _run_signal_handlers() -> None:
    """What a handler raises leaves adapter.cpp as it is. On other threads: nothing."""
    ctypes.pythonapi.PyErr_CheckSignals()


def _folded(tensors: Any, how: int) -> Any:
    return _types.folded(tensors, _types.OPERATIONS[how])


def _reduce_sparse(handle: int, tensors: Any, how: int, timeout_ms: int) -> None:
    from ._pg import LockstepGroup

    group = _groups[handle]
    timeout = timedelta(milliseconds=max(0, timeout_ms))
    python = LockstepGroup(group.comm, group.store, timeout)
    _sparse.all_reduce(python, tensors, _types.OPERATIONS[how], timeout)


def _monitored_barrier(handle: int, timeout_ms: int, wait_all: bool) -> None:
    limit = None if timeout_ms < 0 else timedelta(milliseconds=timeout_ms)
    _groups[handle].barrier.wait(limit, wait_all)


def _split(handle: int, ranks: List[int], name: str, timeout_ms: int) -> int:
    """The new group, of which this rank is a member."""
    parent = _groups[handle]
    comm = _join.create_group(ranks, name, timeout_ms, parent.comm)
    assert comm is not None and comm.handle is not None
    _groups[comm.handle] = _Group(comm, dist.PrefixStore(f"{name}/", parent.store))
    return comm.handle


def _define_operators() -> None:
    """What adapter.cpp calls as operators of PyTorch, through which exceptions pass unchanged."""
    operators = library.Library("lockstep", "FRAGMENT")
    for name, function in (
        ("run_signal_handlers", _run_signal_handlers),
        ("folded", _folded),
        ("reduce_sparse", _reduce_sparse),
        ("monitored_barrier", _monitored_barrier),
        ("split", _split),
        ("factor", _types.factor),
    ):
        operators.impl(name, function, "CompositeExplicitAutograd")
    _operators.append(operators)


def version() -> Tuple[int, int]:
    """Major and minor version of torch."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def file_name() -> str:
    """The module's name for the installed torch."""
    return "_c10d_{}_{}.so".format(*version())


@functools.lru_cache(maxsize=None)  # each new group asks
def _source_hash() -> str:
    """Of the adapter's sources: a module that was compiled from others is not loaded."""
    here = os.path.dirname(os.path.abspath(__file__))
    of = hashlib.sha256()
    for name in sorted(n for n in os.listdir(here) if n.startswith("adapter")):
        with open(os.path.join(here, name), "rb") as source:
            of.update(source.read())
    return of.hexdigest()[:12]


def cache_folder() -> str:
    """Where modules that were compiled on this machine lie, one folder for each build of torch."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(home, "lockstep", f"torch-{torch.__version__}-{_source_hash()}")


def _find() -> str:
    for folder in (*__path__, cache_folder()):
        path = os.path.join(folder, file_name())
        if os.path.exists(path):
            return path
    return ""


def available() -> Tuple[bool, str]:
    """Whether the C++ form can be used, and if not, why."""
    if version() < OLDEST:
        return False, f"torch {torch.__version__} is older than {OLDEST[0]}.{OLDEST[1]}"
    path = _find()
    if not path:
        return False, (
            f"there is no {file_name()}: this package was built without it; "
            "python -m lockstep.torch.build compiles it"
        )
    if path not in _loaded:
        try:
            torch.ops.load_library(path)
            _define_operators()
            ended = ctypes.cast(_ended, ctypes.c_void_p).value
            torch.ops.lockstep.begin_groups(ended, [*_site.OWN, "<frozen"])
            for row in _types.rows():
                torch.ops.lockstep.set_type(*row)
            for item in _refusals.TEXTS.items():
                torch.ops.lockstep.set_refusal(*item)
            _loaded[path] = ""
        except OSError as error:
            _loaded[path] = f"{path} does not load: {error}"
    return _loaded[path] == "", _loaded[path]


@_ENDED
def _ended(handle: int, in_callback: bool) -> None:
    group = _groups.pop(handle, None)
    if group is not None:
        before = _join.enter_callback(in_callback or _join.in_callback())
        group.comm.close()
        _join.enter_callback(before)


def create(comm: Any, store: Any, timeout_ms: int, name: str = "lockstep") -> Any:
    """A backend that works with the group `comm` and calls itself `name`; available() is true."""
    handle = comm.handle
    _groups[handle] = _Group(comm, store)
    holder = torch.ops.lockstep.wrap(handle, timeout_ms, name)
    return dist.ProcessGroup.unbox(holder)._get_backend(torch.device("cpu"))


def _end_all() -> None:
    if any(reason == "" for reason in _loaded.values()):
        torch.ops.lockstep.end_all()


_join.before_close.append(_end_all)
