# SPDX-License-Identifier: Apache-2.0
"""Why arguments are refused: the texts of both forms. {} are the values of the call.

Those of types and reductions are _types.py's.
"""
from __future__ import annotations

from typing import Any

# Where PyTorch's own backends have words that programs may search, these have them, too.
TEXTS = {
    "none": "{} requires non-empty tensor list",
    "tensors": "one tensor a call, not {}",
    "lists": "one list of tensors a call, not {}",
    "list": "{} with a list of {} tensors on {} ranks",
    "lengths": "{} with lists of {} and {} tensors",
    "root": "the root's tensor is number {} of {}",
    "device": "the tensor is on {}, and this group has CPU tensors only; use a mixed group, such "
    'as init_process_group("cpu:lockstep,cuda:nccl")',
    "layout": "only all_reduce takes sparse tensors",
    "types": "{} with tensors of different types",
    "sizes": "{} with tensors of {} and {} elements",
    "whole": "{} with tensors of {} and {} elements on {} ranks",
    "rows": "Tensor's dim 0 does not divide equally across group size: {} rows, {} ranks",
    "splits": "split sizes doesn't match total dim 0 size: {}, {} ranks, {} rows",
    "factor": "the factor of PREMUL_SUM has {} elements of {}; it must be one real number",
    "sparse sum": "a sparse tensor can only be summed",
    "shapes": "the sparse tensor has shape {} on rank {} and {} on rank {}",
}


def check(is_right: bool, name: str, *values: Any) -> None:
    """ValueError with the text of this name, unless the arguments are right."""
    if not is_right:
        raise ValueError("lockstep: " + TEXTS[name].format(*values))
