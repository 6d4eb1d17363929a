# SPDX-License-Identifier: Apache-2.0
"""monitored_barrier over the store of a group: rank 0 names the ranks that do not come.

It uses no operation of the group, which stays usable after a failure.
"""
from __future__ import annotations

import time
from datetime import timedelta
from typing import Any, List, Optional

from . import _join

DEFAULT = timedelta(minutes=30)


class Barrier:
    """The monitored barriers of one group, which all its ranks count alike."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._count = 0

    def wait(self, timeout: Optional[timedelta], wait_all: bool) -> None:
        """Returns when all ranks have called it. RuntimeError: rank 0 names the first rank that has
        not (wait_all: all of them), the others say that rank 0 failed."""
        limit = DEFAULT if timeout is None else timeout
        self._count += 1
        if self._rank == 0 and limit <= timedelta(0):
            raise RuntimeError("Rank 0 timed out in monitoredBarrier after 0 ms")
        prefix = f"monitored_barrier/{self._count}/"
        if self._rank == 0:
            self._collect(prefix, limit, wait_all)
        else:
            self._report(prefix, limit)

    def _leave(self, prefix: str) -> None:
        """Rank 0 has ended the barrier; the last rank removes its keys."""
        if self._store.add(prefix + "left", 1) == self._size:
            for name in [*range(1, self._size), "end", "left"]:
                _join.remove_key(self._store, f"{prefix}{name}")

    def _collect(self, prefix: str, limit: timedelta, wait_all: bool) -> None:
        deadline = time.monotonic() + limit.total_seconds()
        missing: List[int] = []
        for rank in range(1, self._size):
            if _join.appears(self._store, f"{prefix}{rank}", deadline):
                continue
            missing.append(rank)
            if not wait_all:
                break
        text = ""
        if missing:
            ranks = ", ".join(str(rank) for rank in missing)
            text = (
                f"{'Ranks' if wait_all else 'Rank'} {ranks} failed to pass monitoredBarrier "
                f"in {int(limit.total_seconds() * 1000)} ms"
            )
        _join.set_key(self._store, prefix + "end", text or "passed")
        self._leave(prefix)
        if missing:
            raise RuntimeError(text)

    def _report(self, prefix: str, limit: timedelta) -> None:
        _join.set_key(self._store, f"{prefix}{self._rank}", "here")
        # Rank 0 may come later than this rank, and then waits as long.
        deadline = time.monotonic() + 2 * limit.total_seconds()
        text = f"rank 0 did not come in {int(2 * limit.total_seconds() * 1000)} ms"
        if _join.appears(self._store, prefix + "end", deadline):
            text = self._store.get(prefix + "end").decode()
            self._leave(prefix)
        if text != "passed":
            raise RuntimeError(
                f"Rank {self._rank} successfully reached monitoredBarrier, but received errors "
                f"while waiting for send/recv from rank 0: {text}"
            )
