# SPDX-License-Identifier: Apache-2.0
"""What moves the data of an elastic job between its ranks: liblockstep, or a group of another
backend of torch.distributed, such as NCCL. The functions block.

A group of another backend belongs to one formation of the job's group. Its operations end when the
job's group misses a rank, and it is made again, over a connection of its own to the store: a thread
that still waits there for a lost rank disturbs no other one.
"""
from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import threading
import time
from typing import Any, Callable, List, Optional, Sequence

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from . import _join, _lib, _site
from ._lib import lib
from ._types import reduction
from ._work import wait_at_once

POLL_S_MAX = 0.001
NOTICE_S = 10.0  # in which the job's group must miss a rank that a failed operation has missed


def wait(comm: _join.Comm, start: Callable[[Any], int], buffers: Any) -> None:
    """The end of an operation of liblockstep."""
    out = ctypes.c_void_p()
    _site.mark(None)
    _lib.check(start(lib.ls_work_waited(ctypes.byref(out))))
    wait_at_once(comm, out.value, buffers, None, None)


class LockstepPlane:
    """liblockstep, for CPU tensors."""

    has_tree = True  # the sum over ranks is that of the tree of _elastic_sum
    group = None  # of torch

    def __init__(self, comm: _join.Comm) -> None:
        self._comm = comm

    def sum_into(self, target: torch.Tensor, source: torch.Tensor) -> None:
        comm, plan = self._comm, reduction(source.dtype, dist.ReduceOp.SUM)
        addresses = source.data_ptr(), target.data_ptr(), source.numel(), plan.dtype, plan.op
        wait(comm, lambda out: lib.ls_all_reduce(comm.handle, *addresses, out), (source, target))

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        comm, address = self._comm, tensor.data_ptr()
        size = tensor.numel() * tensor.element_size()
        wait(
            comm,
            lambda out: lib.ls_broadcast(comm.handle, address, address, size, _lib.U8, root, out),
            tensor,
        )

    def exchange_parts(
        self,
        source: torch.Tensor,
        source_counts: Sequence[int],
        target: torch.Tensor,
        target_counts: Sequence[int],
    ) -> None:
        """Part r of the source goes to rank r; the target gets a part of each rank."""
        comm, width = self._comm, source.element_size()
        sent, received = (
            (ctypes.c_size_t * comm.size)(*[n * width for n in counts])
            for counts in (source_counts, target_counts)
        )
        addresses = source.data_ptr(), sent, target.data_ptr(), received, _lib.U8
        wait(comm, lambda out: lib.ls_all_to_all_v(comm.handle, *addresses, out), (source, target))

    def gather_parts(self, target: torch.Tensor, counts: Sequence[int]) -> None:
        """Each rank has its part of the target, and gets the others."""
        comm, width = self._comm, target.element_size()
        own = target[sum(counts[: comm.rank]) :]
        sizes = (ctypes.c_size_t * comm.size)(*[n * width for n in counts])
        addresses = own.data_ptr(), target.data_ptr(), sizes, _lib.U8
        wait(comm, lambda out: lib.ls_all_gather_v(comm.handle, *addresses, out), target)


class TorchPlane:
    """A group of torch.distributed; None: the default group, or this process alone."""

    has_tree = False

    def __init__(self, group: Any = None, watched: Optional[_join.Comm] = None) -> None:
        self.group = group
        self._watched = watched
        self.size = dist.get_world_size(group) if dist.is_initialized() else 1

    def wait(self, work: Any) -> None:
        """The end of an operation of the group."""
        begin = time.monotonic()
        while self._watched is not None and not work.is_completed():
            _check(self._watched)
            time.sleep(min((time.monotonic() - begin) / 8, POLL_S_MAX))
        try:
            work.wait()
        except RuntimeError:
            if self._watched is not None:
                _await_notice(self._watched)
            raise

    def sum_into(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source)
        if self.size > 1:
            self.wait(dist.all_reduce(target, group=self.group, async_op=True))

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        if self.size > 1:
            self.wait(dist.broadcast(tensor, root, group=self.group, async_op=True))

    def exchange_parts(
        self,
        source: torch.Tensor,
        source_counts: Sequence[int],
        target: torch.Tensor,
        target_counts: Sequence[int],
    ) -> None:
        if self.size > 1:
            counts = list(target_counts), list(source_counts)
            self.wait(
                dist.all_to_all_single(target, source, *counts, group=self.group, async_op=True)
            )
        else:
            target.copy_(source)

    def gather_parts(self, target: torch.Tensor, counts: Sequence[int]) -> None:
        for rank, part in enumerate(target.split(list(counts))):
            if len(part) > 0:
                self.broadcast(part, rank)

    def close(self) -> None:
        """Ends what the group still does. gloo's destructor waits for operations with a rank that
        does not answer, so a thread has the last reference."""
        last, self.group = [self.group], None
        with contextlib.suppress(Exception):  # gloo has it since torch 2.7
            last[0].abort()
        with contextlib.suppress(Exception):
            dist.destroy_process_group(last[0])
        threading.Thread(target=last.clear, daemon=True).start()


def open_plane(backend: str, comm: _join.Comm, watched: _join.Comm, device: Any) -> TorchPlane:
    """A group of another backend for the ranks of `comm`, which all call it. It fails when the
    group `watched`, which has all of them, misses a rank."""
    key = torch.tensor(list(secrets.token_bytes(8)), dtype=torch.uint8)
    LockstepPlane(comm).broadcast(key, 0)
    name = "lockstep.torch.elastic/" + bytes(key.tolist()).hex()
    made: List[Any] = []

    def make() -> None:
        try:
            made.append(_torch_group(backend, comm, name, device))
        except Exception as error:
            made.append(error)

    thread = threading.Thread(target=make, name=name, daemon=True)
    thread.start()
    while not made:
        _check(watched)
        thread.join(POLL_S_MAX)
    if isinstance(made[0], Exception):
        _await_notice(watched)
        raise made[0]
    return TorchPlane(made[0], watched)


def _torch_group(backend: str, comm: _join.Comm, name: str, device: Any) -> Any:
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(*address, is_master=False, wait_for_workers=False)
    group, _ = distributed_c10d._new_process_group_helper(
        comm.size,
        comm.rank,
        [],
        backend,
        dist.PrefixStore(name, store),
        group_name=name,
        timeout=distributed_c10d.default_pg_timeout,
    )
    distributed_c10d._world.pg_group_ranks[group] = {rank: rank for rank in range(comm.size)}
    dist.all_reduce(torch.zeros(1, device=device), group=group)  # now it has its connections
    return group


def _check(watched: _join.Comm) -> None:
    """Fails when a rank is missed."""
    status = lib.ls_comm_status(watched.handle)
    if status != _lib.OK:
        raise _lib.failure(status, "a rank of the group was lost")


def _await_notice(watched: _join.Comm) -> None:
    """Fails when a rank is missed soon: its end has made an operation of another backend fail."""
    until = time.monotonic() + NOTICE_S
    while time.monotonic() < until:
        _check(watched)
        time.sleep(POLL_S_MAX)
