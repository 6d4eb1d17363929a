# SPDX-License-Identifier: Apache-2.0
"""BalancedSampler: ranks of unequal speed get batches of unequal size."""
from __future__ import annotations

import math
import time
from typing import Any, Callable, Iterator, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from ._balance_plan import EVERY, Planner, Times, divide

_NAME = "lockstep.torch.BalancedSampler"


class BalancedSampler:
    """The batch sampler of a DataLoader whose ranks get samples by their speed.

        batches = BalancedSampler(dataset, 64 * dist.get_world_size())
        loader = DataLoader(dataset, batch_sampler=batches, num_workers=2)
        batches.attach(model)                       # model: DistributedDataParallel(...)
        for epoch in range(10):
            batches.set_epoch(epoch)
            for x, y in batches.steps(loader):      # was: loader
                ...                                 # unchanged

    Needs     a loss that is the mean over the samples of the rank, and one reduced backward() or
              more for each batch: no_sync() is refused. The data set, rows, seed, shuffle and
              drop_last are the same on all ranks.
    Gradients are the mean over the samples of all ranks: a rank counts by its samples.
    Samples   Each sample of an epoch is used once, in the order of DistributedSampler for the same
              seed and epoch. Where the last step has fewer samples than ranks, a rank without one
              reads the first of the step, which does not count.
    Speed     The time from the request for a batch to the end of its backward pass, without the
              wait for other ranks. Every second step the ranks exchange it, in steps(), and all of
              them compute the same partition (_balance_plan.py), which begins with the first batch
              that no rank has handed to its workers yet.

    rows: samples of a step, of all ranks together. speeds: the relative speeds of the ranks, in
    place of measured ones; then nothing is exchanged. group: that of the model.
    """

    def __init__(
        self,
        dataset: Any,
        rows: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        speeds: Optional[Sequence[float]] = None,
        group: Any = None,
    ) -> None:
        self._rank, self._n = dist.get_rank(group), dist.get_world_size(group)
        if not isinstance(rows, int) or rows < self._n:
            raise ValueError(f"{_NAME}: rows={rows}: a step has a sample or more for each rank")
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise TypeError(f"{_NAME}: {type(dataset).__name__} has no numbered samples")
        if drop_last and len(dataset) < rows:
            raise ValueError(f"{_NAME}: {len(dataset)} samples are no step of rows={rows}")
        self._check_speeds(speeds)
        self._size, self._shuffle, self._seed = len(dataset), shuffle, seed
        self._n_steps = self._size // rows if drop_last else -(-self._size // rows)
        self._is_measured, self._group = speeds is None, group
        self._plan = Planner(rows, [1 / s for s in speeds] if speeds else [1.0] * self._n)
        self._times = Times()
        self._epoch = 0
        self._partitions: List[Tuple[int, List[float]]] = []  # first step of the epoch, seconds
        self._n_drawn = 0  # steps of the epoch that the DataLoader has asked for
        self._n_done = 0  # steps of the training
        self._is_open = False  # in steps()
        self._factor = 1.0  # of this rank's gradients, before the mean over ranks
        self._own_end = 0.0  # when the backward pass of this step ended; 0: it has not
        self._is_attached = False
        self._clock: Callable[[], float] = time.perf_counter

    def _check_speeds(self, speeds: Optional[Sequence[float]]) -> None:
        if speeds is None:
            return
        if len(speeds) != self._n:
            raise ValueError(f"{_NAME}: {len(speeds)} speeds for {self._n} ranks")
        if not all(math.isfinite(s) and 1e-6 <= s <= 1e6 for s in speeds):
            raise ValueError(f"{_NAME}: speeds={speeds}: they are numbers from 1e-6 to 1e6")

    @property
    def counts(self) -> List[int]:
        """The samples of each rank in a whole step, of the newest partition."""
        return list(self._plan.counts)

    def set_epoch(self, epoch: int) -> None:
        """The number of the next epoch, which the order of its samples depends on."""
        self._epoch = epoch

    def __len__(self) -> int:
        """Steps of an epoch."""
        return self._n_steps

    # --- the batches ---

    def _order(self) -> torch.Tensor:
        if not self._shuffle:
            return torch.arange(self._size)
        generator = torch.Generator()
        generator.manual_seed(self._seed + self._epoch)
        return torch.randperm(self._size, generator=generator)

    def _counts_of(self, step: int) -> List[int]:
        rows = min(self._plan.rows, self._size - step * self._plan.rows)
        seconds = next(s for first, s in reversed(self._partitions) if first <= step)
        return divide(rows, seconds)

    def __iter__(self) -> Iterator[List[int]]:
        """As the batch sampler of the DataLoader."""
        if not self._is_open:
            raise RuntimeError(f"{_NAME}: the loop is over steps(loader), not over the DataLoader")
        order = self._order()
        self._partitions, self._n_drawn = [(0, self._plan.seconds)], 0
        for step in range(self._n_steps):
            self._n_drawn = step + 1
            counts = self._counts_of(step)
            first = step * self._plan.rows + sum(counts[: self._rank])
            rows = order[first : first + counts[self._rank]]
            yield (rows if len(rows) > 0 else order[step * self._plan.rows :][:1]).tolist()

    # --- steps ---

    def steps(self, loader: Any) -> Iterator[Any]:
        """The batches of an epoch from the DataLoader. Collective."""
        if getattr(loader, "batch_sampler", None) is not self:
            raise TypeError(f"{_NAME}: steps() needs a DataLoader with it as batch_sampler")
        if not self._is_attached:
            raise RuntimeError(f"{_NAME}: attach(model) comes before steps()")
        self._is_open = True
        try:
            begin = self._clock()
            for step, batch in enumerate(loader):
                counts = self._counts_of(step)
                self._factor = counts[self._rank] * self._n / sum(counts)
                self._own_end = 0.0
                yield batch
                if self._own_end == 0:
                    raise RuntimeError(
                        f"{_NAME}: no gradients were reduced for a batch: no_sync() and batches"
                        " without backward() are not possible"
                    )
                if self._is_measured:
                    self._measure((self._own_end - begin) / max(1, counts[self._rank]))
                begin = self._clock()
        finally:
            self._is_open = False

    def _measure(self, seconds: float) -> None:
        self._times.add(seconds)
        self._n_done += 1
        if self._n_done % EVERY != 0:
            return
        numbers = torch.zeros(2, self._n, dtype=torch.float64)
        numbers[0, self._rank] = self._times.middle()
        numbers[1, self._rank] = self._n_drawn
        dist.all_reduce(numbers, group=self._group)
        if self._plan.compare(numbers[0].tolist()):
            self._partitions.append((int(numbers[1].max()), self._plan.seconds))

    # --- gradients ---

    def attach(self, model: Any, hook: Any = None, state: Any = None) -> None:
        """Registers the communication hook of a DistributedDataParallel model that weights the
        gradients; `hook` reduces them then, as torch's fp16_compress_hook does with `state`."""
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        if self._is_measured and any(p.device.type != "cpu" for p in model.parameters()):
            raise ValueError(f"{_NAME}: the speed of devices is not measured: pass speeds=")
        if hook is None:
            hook, state = default_hooks.allreduce_hook, self._group

        def weighted(state, bucket):  # type: ignore[no-untyped-def]  # torch reads annotations
            self._weight(bucket)
            return hook(state, bucket)

        model.register_comm_hook(state, weighted)
        self._is_attached = True

    def _weight(self, bucket: Any) -> None:
        if bucket.is_last():
            self._own_end = self._clock()
        if self._factor == 0:
            bucket.buffer().zero_()  # what does not count may be NaN
        elif self._factor != 1:
            bucket.buffer().mul_(self._factor)
