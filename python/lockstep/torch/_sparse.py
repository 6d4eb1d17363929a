# SPDX-License-Identifier: Apache-2.0
"""all_reduce of sparse COO tensors, with gloo's meaning: the sum, coalesced, on every rank."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence

import torch
import torch.distributed as dist

from ._refusals import check
from ._types import folded
from ._work import LockstepWork, PartOptions, keep_until_waited

if TYPE_CHECKING:
    from ._pg import LockstepGroup


def all_reduce(
    group: "LockstepGroup", tensors: Sequence[torch.Tensor], opts: Any
) -> LockstepWork:
    """The exchange ends before this returns: the sizes of the other ranks decide what is sent."""
    tensor = tensors[0]
    check(tensor.layout == torch.sparse_coo, "layout")
    check(getattr(opts, "reduceOp", dist.ReduceOp.SUM) == dist.ReduceOp.SUM, "sparse sum")
    part = PartOptions(opts)
    mine = folded(tensors, dist.ReduceOp.SUM).coalesce()
    shape = [mine.sparse_dim(), mine.dense_dim(), *mine.shape]
    shapes = [torch.zeros(len(shape), dtype=torch.int64) for _ in range(group.size())]
    group.allgather([shapes], [torch.tensor(shape, dtype=torch.int64)], part).wait()
    for rank, other in enumerate(shapes):
        if other.tolist() != shape:
            raise ValueError(
                f"lockstep: the sparse tensor has shape {shape[2:]} on rank {group.rank()} and "
                f"{other.tolist()[2:]} on rank {rank}"
            )
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
    return keep_until_waited(LockstepWork(group._comm, None, None, tensors))
