# SPDX-License-Identifier: Apache-2.0
"""Gradients of a model as one vector, and sums of such vectors in a fixed tree.

A vector holds, for one unit of a step: the gradients times the unit's number of samples, a mark for
each parameter that has a gradient, a mark for each unit that is in the sum, the number of samples,
and whether new processes wait.

The tree is that of docs/elastic.md: node k of level l covers the units k 2^l to (k+1) 2^l - 1 and
is the sum of its halves; where the right half has no units, the node is its left half. So a sum has
the same bits, however the units are divided among ranks.
"""
from __future__ import annotations

from typing import Any, Dict, Iterable, List, Sequence, Tuple

import torch

Node = Tuple[int, int]  # level, index


def tree_height(n_units: int) -> int:
    return (n_units - 1).bit_length()


def add_node(nodes: Dict[Node, Any], node: Node, value: Any, n_units: int) -> None:
    """Adds the value of a node, and joins it with its sibling as far as the tree allows. Values are
    vectors, or None where only the nodes matter."""
    level, index = node
    while level < tree_height(n_units):
        sibling = (level, index ^ 1)
        if sibling in nodes:
            other = nodes.pop(sibling)
            if value is not None:
                value = value.add_(other)
        elif sibling[1] << level < n_units:
            break
        level, index = level + 1, index >> 1
    nodes[(level, index)] = value


def pieces(units: Iterable[int], n_units: int) -> List[Node]:
    """The nodes that are left when these units are added."""
    nodes: Dict[Node, Any] = {}
    for unit in units:
        add_node(nodes, (0, unit), None, n_units)
    return sorted(nodes)


def _is_tree_of_ranks(of_ranks: Sequence[Sequence[Node]]) -> bool:
    """Whether rank r has node r of one level: then the sum over the ranks is that of the tree."""
    level = of_ranks[0][0][0] if of_ranks[0] else 0
    return all(list(own) == [(level, rank)] for rank, own in enumerate(of_ranks))


def sum_tree(
    job: Any,
    nodes: Dict[Node, torch.Tensor],
    of_ranks: Sequence[Sequence[Node]],
    n_units: int,
    target: torch.Tensor,
) -> None:
    """target = the root of the tree, of which this rank has `nodes`, and rank r of_ranks[r]. The
    nodes stay as they are."""
    plane = job.plane(target.device)
    if plane.has_tree and _is_tree_of_ranks(of_ranks):
        (own,) = nodes.values()
        plane.sum_into(target, own)
        return
    begin, counts = 0, []
    for rank in range(job.size):
        end = len(target) * (rank + 1) // job.size
        counts.append(end - begin)
        begin = end
    own_range = counts[job.rank]
    found: Dict[Node, torch.Tensor] = {}
    nothing = [0] * job.size
    empty = target.new_empty(0)
    for turn in range(max(len(of_rank) for of_rank in of_ranks)):
        senders = [rank for rank, of_rank in enumerate(of_ranks) if turn < len(of_rank)]
        is_sender = job.rank in senders
        received = target.new_empty((len(senders), own_range))
        plane.exchange_parts(
            nodes[of_ranks[job.rank][turn]] if is_sender else empty,
            counts if is_sender else nothing,
            received.view(-1),
            [own_range if rank in senders else 0 for rank in range(job.size)],
        )
        for row, rank in zip(received, senders):
            add_node(found, of_ranks[rank][turn], row, n_units)
    (root,) = found.values()
    first = sum(counts[: job.rank])
    target[first : first + own_range] = root
    plane.gather_parts(target, counts)


class Gradients:
    """The gradients of parameters as vectors for `n_units` units."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter], n_units: int) -> None:
        self._parameters = parameters
        is_double = any(p.dtype == torch.float64 for p in parameters)
        self.dtype = torch.float64 if is_double else torch.float32
        self.device = parameters[0].device if parameters else torch.device("cpu")
        self._sizes = [p.numel() for p in parameters]
        self._units = sum(self._sizes) + len(parameters)  # where the marks of units begin
        self.n_units = n_units

    def vector(self) -> torch.Tensor:
        n = self._units + self.n_units + 2
        return torch.zeros(n, dtype=self.dtype, device=self.device)

    def _views(self, vector: torch.Tensor) -> List[torch.Tensor]:
        parts = vector[: sum(self._sizes)].split(self._sizes)
        return [part.view(p.shape) for part, p in zip(parts, self._parameters)]

    @torch.no_grad()  # type: ignore[misc]
    def pack(
        self, vector: torch.Tensor, touched: Iterable[int], unit: int, rows: int, is_called: bool
    ) -> None:
        """Writes the vector of one unit. touched: the parameters that backward has reached."""
        reached = set(touched)
        marks = [0.0] * len(self._sizes)
        for i, (p, view) in enumerate(zip(self._parameters, self._views(vector))):
            if p.grad is None or i not in reached or rows == 0:
                view.zero_()
            elif p.grad.layout != torch.strided:
                raise TypeError("lockstep.torch.elastic: sparse gradients cannot be reduced")
            elif p.grad.dtype == vector.dtype and p.device == self.device:
                torch.mul(p.grad, rows, out=view)
            else:
                view.copy_(p.grad).mul_(rows)
            marks[i] = float(i in reached)
        units = [0.0] * self.n_units
        units[unit] = 1.0
        tail = [*marks, *units, float(rows), float(is_called)]
        vector[sum(self._sizes) :] = torch.tensor(tail, dtype=self.dtype)

    @torch.no_grad()  # type: ignore[misc]
    def unpack(self, total: torch.Tensor) -> None:
        """The mean over all samples becomes the gradient of each parameter that has one."""
        rows = max(float(total[-2]), 1.0)
        marks = total[sum(self._sizes) : self._units].tolist()
        for p, view, mark in zip(self._parameters, self._views(total), marks):
            if mark == 0:
                continue
            if p.grad is None:
                p.grad = torch.empty_like(p)
            if p.grad.dtype == total.dtype and p.device == self.device:
                torch.div(view, rows, out=p.grad)
            else:
                p.grad.copy_(view / rows)

    def units_of(self, total: torch.Tensor) -> List[int]:
        """The units that are in the sum."""
        marks = total[self._units : self._units + self.n_units].tolist()
        return [unit for unit, mark in enumerate(marks) if mark > 0]

    def is_called(self, total: torch.Tensor) -> bool:
        return bool(total[-1] > 0)
