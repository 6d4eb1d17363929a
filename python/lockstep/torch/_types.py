# SPDX-License-Identifier: Apache-2.0
"""How element types and reductions of PyTorch are expressed in those of liblockstep.

TYPES is the only table of them: both forms of the backend, the texts of errors, the tests and
docs/pytorch.md follow it.
"""
from __future__ import annotations

import functools
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch._C._distributed_c10d import ReduceOp

from . import _lib

# In the order of c10d's enumeration, of which all but the last are liblockstep's.
OPERATIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")

_FLOATING = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "PREMUL_SUM")
_BITS = ("BAND", "BOR", "BXOR")
_INTEGER = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", *_BITS)
_COMPLEX = ("SUM", "AVG", "PREMUL_SUM")  # of the real and the imaginary parts


class Type(NamedTuple):
    """What liblockstep does with a type of PyTorch."""

    moved: int  # as elements of this type
    each: int  # which number of them makes up one
    operations: Tuple[str, ...] = ()
    computed: str = ""  # the type in which they are computed, where it is another one


TYPES = {
    "float16": Type(_lib.F16, 1, _FLOATING),
    "bfloat16": Type(_lib.BF16, 1, _FLOATING),
    "float32": Type(_lib.F32, 1, _FLOATING),
    "float64": Type(_lib.F64, 1, _FLOATING),
    "int8": Type(_lib.I8, 1, _INTEGER),
    "uint8": Type(_lib.U8, 1, _INTEGER),
    "int16": Type(_lib.U8, 2, _INTEGER, "int32"),
    "uint16": Type(_lib.U8, 2, _INTEGER, "int32"),
    "int32": Type(_lib.I32, 1, _INTEGER),
    "uint32": Type(_lib.I32, 1, _INTEGER, "int64"),
    "int64": Type(_lib.I64, 1, _INTEGER),
    "uint64": Type(_lib.I64, 1, ("SUM", "PRODUCT", *_BITS)),
    "bool": Type(_lib.U8, 1, ("SUM", "PRODUCT", "MIN", "MAX", *_BITS)),
    "complex32": Type(_lib.F16, 2, _COMPLEX),
    "complex64": Type(_lib.F32, 2, _COMPLEX),
    "complex128": Type(_lib.F64, 2, _COMPLEX),
    "float8_e4m3fn": Type(_lib.U8, 1, _FLOATING, "float32"),
    "float8_e4m3fnuz": Type(_lib.U8, 1, _FLOATING, "float32"),
    "float8_e5m2": Type(_lib.U8, 1, _FLOATING, "float32"),
    "float8_e5m2fnuz": Type(_lib.U8, 1, _FLOATING, "float32"),
    "float8_e8m0fnu": Type(_lib.U8, 1),
}

# True is 1 and False is 0: "or" is their maximum, "and" their minimum.
_OF_BOOL = {
    "SUM": _lib.MAX,
    "MAX": _lib.MAX,
    "BOR": _lib.MAX,
    "PRODUCT": _lib.MIN,
    "MIN": _lib.MIN,
    "BAND": _lib.MIN,
    "BXOR": _lib.BXOR,
}


class Reduction:
    """What ls_all_reduce() and the like are called with, for one type and operation."""

    __slots__ = ("dtype", "op", "width", "widened", "is_divided", "factor")

    def __init__(self, dtype: int, op: int, width: int) -> None:
        self.dtype, self.op, self.width = dtype, op, width
        self.widened: Optional[torch.dtype] = None  # the tensor is converted to this type first
        self.is_divided = False  # the result is divided by the group's size, toward zero
        self.factor: Any = None  # the tensor is multiplied by it first

    def is_direct(self) -> bool:
        """Whether the library reads and writes the elements of the tensors."""
        return self.widened is None and self.factor is None and not self.is_divided


def _of(dtype: torch.dtype) -> Optional[Type]:
    return TYPES.get(str(dtype).split(".")[-1])


def move_refusal(dtype: torch.dtype) -> str:
    """Why tensors of a type cannot be moved; "" where they can."""
    return "" if _of(dtype) else f"lockstep: {dtype} tensors are not supported"


def refusal(dtype: torch.dtype, operation: str) -> str:
    """Why a reduction is refused; "" where it is not."""
    kind = _of(dtype)
    if kind is None:
        return move_refusal(dtype)
    if operation in kind.operations:
        return ""
    can = ", ".join(kind.operations) or "none"
    return (
        f"lockstep: a reduction with {operation} of {dtype} tensors is not supported; "
        f"those of {dtype}: {can}"
    )


def plan(dtype: torch.dtype, operation: str) -> Reduction:
    """The reduction without a factor; refusal() is ""."""
    kind = TYPES[str(dtype).split(".")[-1]]
    is_averaged_integer = operation == "AVG" and kind.operations is _INTEGER
    computed = "int64" if is_averaged_integer else kind.computed
    native = TYPES[computed] if computed else kind
    op = OPERATIONS.index("SUM" if operation in ("AVG", "PREMUL_SUM") else operation)
    if operation == "AVG" and not is_averaged_integer:
        op = _lib.AVG
    elif dtype is torch.bool:
        op = _OF_BOOL[operation]
    made = Reduction(native.moved, op, native.each)
    if computed and computed != str(dtype).split(".")[-1]:
        made.widened = getattr(torch, computed)
    made.is_divided = is_averaged_integer
    return made


_names = {getattr(ReduceOp, name): name for name in OPERATIONS if hasattr(ReduceOp, name)}
_known: Dict[Tuple[torch.dtype, str], Reduction] = {}


def _name(op: Any) -> str:
    name = _names.get(getattr(op, "op", op))  # a ReduceOp, or one of its constants
    if name is None:
        raise ValueError(f"lockstep: the reduction {op} is not supported")
    return name


# The reductions of the tensors of one rank.
_FOLDS = {
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


def folded(tensors: Sequence[torch.Tensor], op: Any) -> torch.Tensor:
    """The reduction of several tensors of one rank."""
    return functools.reduce(_FOLDS.get(_name(op), torch.add), tensors)


def reduction(dtype: torch.dtype, op: Any) -> Reduction:
    """The plan of a reduction. Raises ValueError where there is none."""
    name = _name(op)
    made = _known.get((dtype, name))
    if made is None:
        text = refusal(dtype, name)
        if text:
            raise ValueError(text)
        made = _known[dtype, name] = plan(dtype, name)
    if name == "PREMUL_SUM":
        made = plan(dtype, name)
        made.factor = _factor(op.__getstate__()[1])
    return made


def _factor(given: Any) -> Any:
    """The number by which PREMUL_SUM multiplies."""
    if not isinstance(given, torch.Tensor):
        return given
    if given.dtype is torch.bool or given.is_complex() or given.numel() != 1:
        raise ValueError(
            f"lockstep: the factor of PREMUL_SUM has {given.numel()} elements of {given.dtype}; it "
            "must be one real number"
        )
    return given.item()


def moved(dtype: torch.dtype) -> Tuple[int, int]:
    """liblockstep's type for a move, and the number of its elements in one of `dtype`."""
    kind = _moved.get(dtype)
    if kind is None:
        raise ValueError(move_refusal(dtype))
    return kind


_moved = {getattr(torch, n): kind[:2] for n, kind in TYPES.items() if hasattr(torch, n)}


def rows() -> List[Tuple[torch.dtype, int, torch.dtype, List[int], str]]:
    """The table for the C++ form: type, operation (-1: moves), the type in which it is computed;
    liblockstep's type, number of elements and operation, whether the result is divided; or why it
    is refused."""
    found: List[Tuple[torch.dtype, int, torch.dtype, List[int], str]] = []
    for dtype in {value for value in vars(torch).values() if isinstance(value, torch.dtype)}:
        text = move_refusal(dtype)
        moves = [0, 0, 0, 0] if text else [*moved(dtype), 0, 0]
        found.append((dtype, -1, dtype, moves, text))
        for number, name in enumerate(OPERATIONS if not text else ()):
            text = refusal(dtype, name)
            if text:
                found.append((dtype, number, dtype, [0, 0, 0, 0], text))
                continue
            made = plan(dtype, name)
            numbers = [made.dtype, made.width, made.op, int(made.is_divided)]
            found.append((dtype, number, made.widened or dtype, numbers, ""))
    return found
