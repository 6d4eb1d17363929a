# SPDX-License-Identifier: Apache-2.0
"""A backend of torch.distributed: init_process_group("lockstep").

From torch 2.14 on the name alone is enough. Before, the program imports lockstep.torch first.
Importing it registers the backend and changes nothing else of PyTorch, except with
LOCKSTEP_TORCH_REPLACE=gloo: then groups that a program creates as "gloo" are Lockstep's.
"""
from __future__ import annotations

import os
import sys
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Tuple

try:
    import torch.distributed as dist
    from torch.distributed import distributed_c10d
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError(
        f"lockstep.torch needs PyTorch, which {sys.executable} does not have: pip install torch,"
        " or use another Python (of lockstep run: PYTHON_EXEC)"
    ) from None

from . import _elastic_job, _errors, _join, _site
from ._balance import BalancedSampler
from ._lib import lib
from ._pg import LockstepGroup
from ._watch import Watch, watch
from ._work import milliseconds

__all__ = ["BalancedSampler", "LockstepGroup", "Watch", "form", "register", "version", "watch"]


def version() -> str:
    """The version of the loaded liblockstep."""
    text: bytes = lib.ls_version()
    return text.decode()


def form() -> Tuple[str, str]:
    """ "cpp" or "python": what new groups are, and the reason.

    LOCKSTEP_TORCH_FORM chooses; RuntimeError: the C++ form was chosen and cannot be used.
    """
    chosen = os.environ.get("LOCKSTEP_TORCH_FORM", "")
    if chosen == "python":
        return "python", "LOCKSTEP_TORCH_FORM=python"
    if chosen not in ("", "cpp"):
        raise RuntimeError(f'LOCKSTEP_TORCH_FORM={chosen}: write "python" or "cpp", or unset it')
    from . import _cpp

    usable, reason = _cpp.available()
    if usable:
        return "cpp", "LOCKSTEP_TORCH_FORM=cpp" if chosen else "it fits the installed torch"
    if chosen == "cpp":
        raise RuntimeError(f"LOCKSTEP_TORCH_FORM=cpp: {reason}")
    return "python", reason


def _comm(opts: Any) -> _join.Comm:
    """The group of liblockstep for a group that c10d creates."""
    ranks = list(getattr(opts, "global_ranks_in_group", None) or [])
    timeout_ms = milliseconds(opts.timeout)
    if not ranks:
        world = _join.join_world(opts.store, opts.group_rank, opts.group_size, timeout_ms)
        assert world.handle is not None
        _site.show_stack_when_late(world.handle)
        return world
    comm = _join.create_group(ranks, str(opts.group_id), timeout_ms)
    return comm or _join.join(opts.store, opts.group_rank, opts.group_size, timeout_ms)


def _backend(comm: _join.Comm, store: Any, timeout: Any, name: str) -> Any:
    """What torch gets for a group."""
    kind, _ = form()
    if kind == "cpp":
        from . import _cpp

        return _cpp.create(comm, store, milliseconds(timeout), name)
    return LockstepGroup(comm, store, timeout or timedelta(minutes=30), name)


def _group(opts: Any, name: str) -> Any:
    is_default = not list(getattr(opts, "global_ranks_in_group", None) or [])
    if is_default and _elastic_job.is_elastic():
        job = _elastic_job.Job(milliseconds(opts.timeout))
        if job.is_new:  # the others have passed this barrier of older torch, which counts processes
            distributed_c10d._store_based_barrier = lambda *_arguments, **_named: None
        return _elastic_job.ElasticGroup(job, opts.store, opts.timeout, name)
    return _backend(_comm(opts), opts.store, opts.timeout, name)


def _create(opts: Any, pg_options: Any = None) -> Any:
    return _group(opts, "lockstep")


def _create_as_gloo(opts: Any, pg_options: Any = None) -> Any:
    return _group(opts, "gloo")


class _LikeGloo(type):
    def __instancecheck__(cls, group: Any) -> bool:
        return isinstance(group, (LockstepGroup, _backend_class() or LockstepGroup))


class _InPlaceOfGloo(metaclass=_LikeGloo):
    """What distributed_c10d creates as ProcessGroupGloo before torch 2.14."""

    def __new__(cls, store: Any, rank: int, size: int, timeout: Any = None) -> Any:
        timeout = timeout or timedelta(minutes=30)
        comm = _join.join(store, rank, size, milliseconds(timeout))
        return _backend(comm, store, timeout, "gloo")


def register() -> None:
    """Registers the backend; called by the import, and by torch's entry points."""
    if hasattr(dist.Backend, "LOCKSTEP"):
        return
    try:
        dist.Backend.register_backend("lockstep", _create, extended_api=True, devices=["cpu"])
    except TypeError:  # torch 1.13 knows no devices
        dist.Backend.register_backend("lockstep", _create, extended_api=True)
    replaced = os.environ.get("LOCKSTEP_TORCH_REPLACE", "")
    if replaced not in ("", "gloo"):
        raise RuntimeError(f'LOCKSTEP_TORCH_REPLACE={replaced}: only "gloo" can be replaced')
    if replaced:
        _replace_gloo()


def _backend_class() -> Any:
    from torch._C import _distributed_c10d

    return getattr(_distributed_c10d, "Backend", None)


def _replace_gloo() -> None:
    kind = _backend_class()
    if hasattr(kind, "set_timeout") and not hasattr(kind, "_set_default_timeout"):
        kind._set_default_timeout = kind.set_timeout  # distributed_c10d calls it for gloo
    plugins = distributed_c10d.Backend._plugins
    if hasattr(dist.Backend, "_ensure_backend_registered"):  # gloo is a plugin since torch 2.14
        dist.Backend._ensure_backend_registered("gloo")
    if "GLOO" in plugins:
        plugins["GLOO"] = distributed_c10d.Backend._BackendPlugin(_create_as_gloo, True)
    else:
        distributed_c10d.ProcessGroupGloo = _InPlaceOfGloo
        if kind is not None and not hasattr(kind, "options"):
            # distributed_c10d notes the group's ranks there; gloo alone has it in these versions.
            kind.options = SimpleNamespace()


register()
_errors.install()
