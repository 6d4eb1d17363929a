# SPDX-License-Identifier: Apache-2.0
"""all_reduce of sparse COO tensors, with gloo's meaning: the sum, coalesced, on every rank."""
from __future__ import annotations

import functools
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Optional, Sequence

import torch

from ._refusals import check

if TYPE_CHECKING:
    from ._pg import LockstepGroup


@torch.no_grad()  # type: ignore[misc]
def all_reduce(
    group: "LockstepGroup",
    tensors: Sequence[torch.Tensor],
    name: str,
    timeout: Optional[timedelta],
) -> None:
    """Blocks: the sizes of the other ranks decide what is sent. Both forms call it."""
    for tensor in tensors:
        check(tensor.is_cpu, "device", tensor.device)
        check(tensor.layout == torch.sparse_coo, "layout")
    check(name == "SUM", "sparse sum")
    part = SimpleNamespace(asyncOp=True, timeout=timeout)
    mine = functools.reduce(torch.add, tensors).coalesce()
    shape = [mine.sparse_dim(), mine.dense_dim(), *mine.shape]
    shapes = [torch.zeros(len(shape), dtype=torch.int64) for _ in range(group.size())]
    group.allgather([shapes], [torch.tensor(shape, dtype=torch.int64)], part).wait()
    for rank, other in enumerate(shapes):
        found = other.tolist()
        check(found == shape, "shapes", shape[2:], group.rank(), found[2:], rank)
    mine_count = torch.tensor([mine._nnz()], dtype=torch.int64)
    counts = [torch.zeros(1, dtype=torch.int64) for _ in range(group.size())]
    group.allgather([counts], [mine_count], part).wait()
    entries = [int(count) for count in counts]
    indices = [torch.empty(shape[0] * n, dtype=torch.int64) for n in entries]
    dense = mine.values().shape[1:]
    values = [torch.empty((n, *dense), dtype=mine.dtype) for n in entries]
    group.allgather([indices], [mine.indices().reshape(-1)], part).wait()
    group.allgather([values], [mine.values()], part).wait()
    rows = torch.cat([part.view(shape[0], -1) for part in indices], dim=1)
    total = torch.sparse_coo_tensor(rows, torch.cat(values), mine.shape).coalesce()
    for target in tensors:
        target.copy_(total)
        target._coalesced_(True)
