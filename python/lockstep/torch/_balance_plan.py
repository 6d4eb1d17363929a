# SPDX-License-Identifier: Apache-2.0
"""How many samples each rank gets in a step, by its measured speed. Pure: ranks that give it the
same numbers get the same partition. The rules and their numbers are those of src/ddp/balance.h,
whose planner divides shards and weighs the pieces of their tree.
"""
from __future__ import annotations

from typing import List, Sequence

SAMPLES = 9  # steps of a mean
EVERY = 2  # steps from one comparison to the next
AGREE = 3  # comparisons in a row
AGREE_MOST = 96  # after returns
QUIET = 200  # steps
GAIN = 0.03
URGENT = 0.30


class Times:
    """Seconds per sample in the last steps of a rank."""

    def __init__(self) -> None:
        self._last: List[float] = []

    def add(self, seconds: float) -> None:
        if seconds > 0:
            self._last = [*self._last[1 - SAMPLES :], seconds]

    def middle(self) -> float:
        """The mean without the shortest and the longest third. 0: there is at most one time, which
        may be longer by chance."""
        n = len(self._last)
        if n < 2:
            return 0.0
        kept = sorted(self._last)[n // 3 : n - (n + 2) // 3]
        return sum(kept) / len(kept)


def divide(rows: int, seconds: Sequence[float]) -> List[int]:
    """`rows` samples among ranks that need so many seconds for one, so that the slowest rank ends
    early. A rank gets at least two samples, because batch norms refuse a single one, or as many as
    there are for all; where there are fewer than ranks, the last ranks get none."""
    n = len(seconds)
    if rows < 2 * n:
        n_used = max(1, rows // 2)
        return [(rows + n_used - 1 - r) // n_used if r < n_used else 0 for r in range(n)]
    total = sum(1 / s for s in seconds)
    counts = [max(2, int(rows / s / total)) for s in seconds]
    while sum(counts) > rows:
        last = max((r for r in range(n) if counts[r] > 2), key=lambda r: counts[r] * seconds[r])
        counts[last] -= 1
    while sum(counts) < rows:
        counts[min(range(n), key=lambda r: (counts[r] + 1) * seconds[r])] += 1
    return counts


class Planner:
    """The partition of the steps of a training."""

    def __init__(self, rows: int, seconds: Sequence[float]) -> None:
        self.rows = rows
        self.seconds = list(seconds)  # that the partition was made for
        self.counts = divide(rows, seconds)
        self._previous: List[int] = []
        self._n_better = 0
        self._agree = AGREE
        self._n_compared = self._changed_at = 0

    def compare(self, seconds: Sequence[float]) -> bool:
        """Each EVERY steps, with what all ranks have measured; 0: unknown. True: counts has
        changed."""
        self._n_compared += 1
        if min(seconds) <= 0:
            return False
        best = divide(self.rows, seconds)
        gain = 1 - self._longest(best, seconds) / self._longest(self.counts, seconds)
        self._n_better = self._n_better + 1 if gain > GAIN else 0
        if self._n_better < self._agree and gain <= URGENT:
            return False
        self._change(best)
        self.seconds = list(seconds)
        return True

    @staticmethod
    def _longest(counts: Sequence[int], seconds: Sequence[float]) -> float:
        return max(n * s for n, s in zip(counts, seconds))

    def _change(self, best: List[int]) -> None:
        """A return to the partition before doubles the comparisons that the next change needs."""
        if (self._n_compared - self._changed_at) * EVERY >= QUIET:
            self._agree = AGREE
        elif best == self._previous:
            self._agree = min(2 * self._agree, AGREE_MOST)
        self._previous, self.counts = self.counts, best
        self._n_better, self._changed_at = 0, self._n_compared
