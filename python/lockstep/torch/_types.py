# SPDX-License-Identifier: Apache-2.0
"""How element types and reductions of PyTorch are expressed in those of liblockstep."""
from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

import torch
from torch._C._distributed_c10d import ReduceOp

from . import _lib

# By type: liblockstep's type for moves, and how many of its elements make up one.
MOVED: Dict[torch.dtype, Tuple[int, int]] = {
    torch.int8: (_lib.I8, 1),
    torch.uint8: (_lib.U8, 1),
    torch.bool: (_lib.U8, 1),
    torch.int16: (_lib.U8, 2),
    torch.int32: (_lib.I32, 1),
    torch.int64: (_lib.I64, 1),
    torch.float16: (_lib.F16, 1),
    torch.bfloat16: (_lib.BF16, 1),
    torch.float32: (_lib.F32, 1),
    torch.float64: (_lib.F64, 1),
    torch.complex64: (_lib.F32, 2),
    torch.complex128: (_lib.F64, 2),
}
for _name, _as in {
    "uint16": (_lib.U8, 2),
    "uint32": (_lib.I32, 1),
    "uint64": (_lib.I64, 1),
    "complex32": (_lib.F16, 2),
    "float8_e4m3fn": (_lib.U8, 1),
    "float8_e5m2": (_lib.U8, 1),
    "float8_e4m3fnuz": (_lib.U8, 1),
    "float8_e5m2fnuz": (_lib.U8, 1),
}.items():
    if hasattr(torch, _name):
        MOVED[getattr(torch, _name)] = _as

_NAMES = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")  # in liblockstep's order
_kinds = {getattr(ReduceOp, name): number for number, name in enumerate(_NAMES)}
_PREMUL = getattr(ReduceOp, "PREMUL_SUM", None)

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_COMPLEX = (torch.complex64, torch.complex128)
# Added in a wider type, and cut back.
_WIDENED = {torch.int16: (torch.int32, _lib.I32)}
if hasattr(torch, "uint16"):
    _WIDENED[torch.uint16] = (torch.int32, _lib.I32)
# The disjunction of values 0 and 1 is their maximum.
_OF_BOOL = {_lib.SUM: _lib.MAX, _lib.PROD: _lib.MIN}


class Reduction:
    """What ls_all_reduce() and the like are called with, for one type and operation."""

    __slots__ = ("dtype", "op", "width", "widened", "factor")

    def __init__(self, dtype: int, op: int, width: int = 1) -> None:
        self.dtype, self.op, self.width = dtype, op, width
        self.widened: Optional[torch.dtype] = None  # the tensor is converted to this type first
        self.factor: Any = None  # the tensor is multiplied by it first


_known: Dict[Tuple[torch.dtype, int], Reduction] = {}


def _plan(dtype: torch.dtype, op: int) -> Reduction:
    name = _NAMES[op]
    if dtype in _COMPLEX and op in (_lib.SUM, _lib.AVG):
        return Reduction(_lib.F32 if dtype is torch.complex64 else _lib.F64, op, 2)
    if dtype in _FLOATS and op < _lib.BAND:
        return Reduction(MOVED[dtype][0], op)
    if op == _lib.AVG or dtype not in MOVED or dtype.is_floating_point or dtype.is_complex:
        raise ValueError(f"lockstep: a reduction with {name} of {dtype} tensors is not supported")
    if dtype is torch.bool:
        return Reduction(_lib.U8, _OF_BOOL.get(op, op))
    if dtype in _WIDENED:
        plan = Reduction(_WIDENED[dtype][1], op)
        plan.widened = _WIDENED[dtype][0]
        return plan
    if dtype not in (torch.int8, torch.uint8, torch.int32, torch.int64) and op in (
        _lib.MIN,
        _lib.MAX,
    ):
        raise ValueError(f"lockstep: a reduction with {name} of {dtype} tensors is not supported")
    return Reduction(MOVED[dtype][0], op)


def reduction(dtype: torch.dtype, op: Any) -> Reduction:
    """The plan of a reduction. Raises ValueError where there is none."""
    kind = getattr(op, "op", op)  # a ReduceOp, or one of its constants
    number = _kinds.get(kind)
    if number is None and _PREMUL is not None and kind == _PREMUL:
        plan = _plan(dtype, _lib.SUM)
        scaled = Reduction(plan.dtype, plan.op, plan.width)
        scaled.widened, scaled.factor = plan.widened, op.__getstate__()[1]
        return scaled
    if number is None:
        raise ValueError(f"lockstep: the reduction {op} is not supported")
    plan_or_none = _known.get((dtype, number))
    if plan_or_none is None:
        plan_or_none = _known[dtype, number] = _plan(dtype, number)
    return plan_or_none


def moved(dtype: torch.dtype) -> Tuple[int, int]:
    """liblockstep's type for a move, and the number of its elements in one of `dtype`."""
    try:
        return MOVED[dtype]
    except KeyError:
        raise ValueError(f"lockstep: {dtype} tensors are not supported") from None
