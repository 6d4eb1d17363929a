# SPDX-License-Identifier: Apache-2.0
"""Which samples a rank reads in a step, and a DataLoader that reads them.

A *partition* is a list of samples for V units. Unit u reads the samples u, u + V, ... of the list,
as rank u of DistributedSampler does, and B of them in each step. All functions of a partition give
the same on all ranks.
"""
from __future__ import annotations

from collections import deque
from typing import Any, Deque, Iterable, Iterator, List, Optional, Tuple

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torch.utils.data.distributed import DistributedSampler
from torch.utils.data.sampler import BatchSampler, RandomSampler, SequentialSampler

from . import _elastic_state

Token = Tuple[int, int]  # step of a partition, unit


class Partition:
    """The samples `order` for `n_units` units of `batch` samples a step."""

    def __init__(self, order: torch.Tensor, n_units: int, batch: int) -> None:
        self.order, self.n_units, self.batch = order, n_units, batch
        self.n_steps = -(-len(order) // (n_units * batch))

    def rows(self, step: int, unit: int) -> torch.Tensor:
        """The samples of a unit in a step. In the last step there may be none, and not a single one
        where that can be avoided, which batch norms refuse: then some have one more."""
        size = self.n_units * self.batch
        part = self.order[step * size : (step + 1) * size]
        least = min(2, self.batch)
        n_used = min(self.n_units, max(1, len(part) // least))
        return part[unit::n_used] if unit < n_used else part[:0]

    def indices(self, step: int, unit: int) -> List[int]:
        """What the unit reads: its samples. Without any, those of unit 0, which do not count."""
        rows = self.rows(step, unit)
        chosen: List[int] = (rows if len(rows) > 0 else self.rows(step, 0)).tolist()
        return chosen

    def rest(self, step: int) -> torch.Tensor:
        """The samples of this step and later ones."""
        return self.order[step * self.n_units * self.batch :]


class _Seeded(Dataset):  # type: ignore[type-arg]
    """A data set whose random numbers depend on (seed, epoch, sample) only."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, key: Tuple[int, int]) -> Any:
        number, sample = key
        _elastic_state.seed_all(_elastic_state.mix(number, sample))
        return self._dataset[sample]


class Feed:
    """A program's DataLoader with batches in the order of redirect()."""

    def __init__(self, loader: Any, is_seeded: bool) -> None:
        if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
            raise TypeError(
                "lockstep.torch.elastic: steps() needs a DataLoader over a data set with numbered "
                f"samples (__getitem__, __len__), got {type(loader).__name__}"
            )
        self.program_loader = loader
        sampler = loader.batch_sampler
        while hasattr(sampler, "batch_sampler"):  # a part of it, as accelerate's prepare() makes
            sampler = sampler.batch_sampler
        if getattr(type(sampler), "__iter__", None) is not BatchSampler.__iter__:
            raise TypeError(
                "lockstep.torch.elastic: steps() makes the batches from sampler and batch_size, "
                f"and cannot use the batch sampler {type(sampler).__name__}"
            )
        self.batch, self.drop_last = int(sampler.batch_size), bool(sampler.drop_last)
        self._sampler = sampler.sampler
        self._is_seeded = is_seeded
        self._number = 0  # of the epoch, for random numbers
        self._sequence: Iterator[Tuple[Token, List[int]]] = iter(())
        self._generation = 0
        self._handed: Deque[Tuple[int, Token]] = deque()  # batches that the DataLoader works on
        self._loader = self._rebuilt(loader)
        self._iterator: Any = None

    def _rebuilt(self, loader: Any) -> Any:
        named = dict(
            batch_sampler=self,
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            generator=loader.generator,
            persistent_workers=loader.persistent_workers,
        )
        if loader.num_workers > 0:
            named["prefetch_factor"] = loader.prefetch_factor
        dataset = _Seeded(loader.dataset) if self._is_seeded else loader.dataset
        return DataLoader(dataset, **named)

    def order(self, seed: int, epoch: int) -> Optional[torch.Tensor]:
        """The samples of an epoch in the order of the program's sampler, where that depends on seed
        and epoch only. None: program_order() of one rank counts."""
        n, sampler = len(self.program_loader.dataset), self._sampler
        is_shuffled = isinstance(sampler, RandomSampler)
        if isinstance(sampler, DistributedSampler):
            is_shuffled, seed = sampler.shuffle, sampler.seed
        elif not isinstance(sampler, (RandomSampler, SequentialSampler)):
            return None
        if getattr(sampler, "replacement", False) or getattr(sampler, "_num_samples", None):
            return None
        if not is_shuffled:
            return torch.arange(n)
        generator = torch.Generator()
        generator.manual_seed(seed + epoch)
        return torch.randperm(n, generator=generator)

    def program_order(self, epoch: int) -> torch.Tensor:
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(epoch)
        return torch.tensor(list(self._sampler), dtype=torch.int64)

    # --- the batches ---

    def redirect(self, sequence: Iterable[Tuple[Token, List[int]]], number: int) -> None:
        """From now on fetch() gives the batches of this sequence; what the workers have read ahead
        is dropped when it comes."""
        self._generation += 1
        self._sequence, self._number = iter(sequence), number

    def __iter__(self) -> Iterator[Any]:
        """As the batch sampler of the DataLoader."""
        while True:
            item = next(self._sequence, None)
            if item is None:
                return
            token, indices = item
            self._handed.append((self._generation, token))
            yield [(self._number, i) for i in indices] if self._is_seeded else indices

    def __len__(self) -> int:
        return len(self.program_loader)

    def fetch(self, token: Token) -> Any:
        """The next batch of the sequence, which is that of `token`."""
        for _ in range(2):
            if self._iterator is None:
                self._iterator = iter(self._loader)
            for batch in self._iterator:
                generation, found = self._handed.popleft()
                if generation == self._generation:
                    assert found == token, f"batch {found} in place of {token}"
                    return batch
            self._iterator = None  # the sampler had ended before redirect()
        raise RuntimeError(f"lockstep.torch.elastic: the DataLoader gives no batch for {token}")

    def end_epoch(self) -> None:
        """Lets the workers end."""
        self._iterator = None
        self._handed.clear()
