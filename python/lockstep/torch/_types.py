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
from ._refusals import check

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


def name_of(op: Any) -> str:
    """The operation of a ReduceOp, or of one of its constants."""
    return _names[getattr(op, "op", op)]


def _allowed(dtype: torch.dtype, name: str) -> Reduction:
    made = _known.get((dtype, name))
    if made is None:
        text = refusal(dtype, name)
        if text:
            raise ValueError(text)
        made = _known[dtype, name] = plan(dtype, name)
    return made


# The library's reductions, for tensors of one rank.
_FOLDS = {
    _lib.SUM: torch.add,
    _lib.AVG: torch.add,
    _lib.PROD: torch.mul,
    _lib.MIN: torch.minimum,
    _lib.MAX: torch.maximum,
    _lib.BAND: torch.bitwise_and,
    _lib.BOR: torch.bitwise_or,
    _lib.BXOR: torch.bitwise_xor,
}
# The library's types, by its numbers.
_NATIVE = (
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
)


def folded(tensors: Sequence[torch.Tensor], name: str) -> torch.Tensor:
    """The reduction of several tensors of one rank, in the type in which it is computed; without
    the divisor of AVG and the factor of PREMUL_SUM. Both forms call it."""
    made = _allowed(tensors[0].dtype, name)
    computed = made.widened or tensors[0].dtype
    plain = [tensor.to(computed).resolve_conj().resolve_neg() for tensor in tensors]
    parts = [tensor.contiguous().view(-1).view(_NATIVE[made.dtype]) for tensor in plain]
    return functools.reduce(_FOLDS[made.op], parts).view(computed).view(tensors[0].shape)


def reduction(dtype: torch.dtype, op: Any) -> Reduction:
    """The plan of a reduction. Raises ValueError where there is none."""
    name = name_of(op)
    made = _allowed(dtype, name)
    if name == "PREMUL_SUM":
        made = plan(dtype, name)
        given = op.__getstate__()[1]
        made.factor = factor(given) if isinstance(given, torch.Tensor) else given
    return made


def factor(given: torch.Tensor) -> Any:
    """The number by which PREMUL_SUM multiplies. Both forms call it."""
    is_number = given.dtype is not torch.bool and not given.is_complex() and given.numel() == 1
    check(is_number, "factor", given.numel(), given.dtype)
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
