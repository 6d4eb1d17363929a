# SPDX-License-Identifier: Apache-2.0
"""A backend of torch.distributed: init_process_group("lockstep").

From torch 2.14 on the name alone is enough. Before, the program imports lockstep.torch first.
Importing it registers the backend and changes nothing else of PyTorch.
"""
from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from . import _errors, _join
from ._lib import lib
from ._pg import LockstepGroup
from ._work import milliseconds

__all__ = ["LockstepGroup", "register", "version"]


def version() -> str:
    """The version of the loaded liblockstep."""
    text: bytes = lib.ls_version()
    return text.decode()


def _create(opts: Any, pg_options: Any = None) -> Any:
    timeout = opts.timeout or timedelta(minutes=30)
    comm = _join.join(opts.store, opts.group_rank, opts.group_size, milliseconds(timeout))
    return LockstepGroup(comm, opts.store, timeout)


def register() -> None:
    """Registers the backend; called by the import, and by torch's entry point."""
    if hasattr(dist.Backend, "LOCKSTEP"):
        return
    try:
        dist.Backend.register_backend("lockstep", _create, extended_api=True, devices=["cpu"])
    except TypeError:  # torch 1.13 knows no devices
        dist.Backend.register_backend("lockstep", _create, extended_api=True)


register()
_errors.install()
