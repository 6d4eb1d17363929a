# SPDX-License-Identifier: Apache-2.0
"""monitored_barrier: rank 0 names the ranks that do not arrive in time; the group stays usable.

Every other rank sends a byte to rank 0 and waits for its verdict. Each call has a tag of its own, so
that a rank which arrives late meets its own barrier, and not a later one. The texts are gloo's.
"""
from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, List, Optional

import torch

from . import _lib
from ._work import LockstepWork, milliseconds

if TYPE_CHECKING:
    from ._pg import LockstepGroup

TAG = 1 << 30  # above the tags that programs use
TAGS = 1 << 20
PASSED, FAILED = 1, 2


def _byte(value: int) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.uint8)


def _ends_by(work: LockstepWork, deadline: float) -> bool:
    """Whether the operation ends in time. Raises its error."""
    left = max(0.0, deadline - time.monotonic())
    if not work.poll(timedelta(seconds=left)):
        return False
    work.wait()
    return True


def _lead(group: "LockstepGroup", tag: int, timeout_ms: int, wait_all: bool) -> None:
    if timeout_ms <= 0:
        raise _lib.BackendError("lockstep: Rank 0 timed out in monitoredBarrier after 0 ms.")
    deadline = time.monotonic() + timeout_ms / 1000
    arrivals = [(rank, group.recv(_byte(0), rank, tag)) for rank in range(1, group.size())]
    late: List[int] = []
    for rank, work in arrivals:
        if late and not wait_all:
            break
        if not _ends_by(work, deadline):
            late.append(rank)
    verdict = FAILED if late else PASSED
    # A rank that arrives later finds the verdict, too.
    for rank in range(1, group.size()):
        group.send(_byte(verdict), rank, tag)
    if late:
        names = ", ".join(str(rank) for rank in late)
        noun = "Ranks" if wait_all else "Rank"
        raise _lib.BackendError(
            f"lockstep: [Rank 0]: {noun} {names} failed to pass monitoredBarrier in {timeout_ms} ms"
        )


def _follow(group: "LockstepGroup", tag: int, timeout_ms: int) -> None:
    group.send(_byte(PASSED), 0, tag)
    verdict = _byte(0)
    work = group.recv(verdict, 0, tag)
    # Rank 0 may have started its wait later, and then needs all of it.
    passed = _ends_by(work, time.monotonic() + 2 * timeout_ms / 1000 + 1) and verdict[0] == PASSED
    if not passed:
        raise _lib.BackendError(
            f"lockstep: Rank {group.rank()} successfully reached monitoredBarrier, but received "
            "errors while waiting for send/recv from rank 0. Please check rank 0 logs for faulty "
            "rank."
        )


def monitored_barrier(
    group: "LockstepGroup", number: int, timeout: Optional[timedelta], wait_all: bool
) -> None:
    """The number-th barrier of the group."""
    timeout_ms = milliseconds(group.options._timeout if timeout is None else timeout)
    tag = TAG + number % TAGS
    if group.rank() == 0:
        _lead(group, tag, timeout_ms, wait_all)
    else:
        _follow(group, tag, timeout_ms)
