# SPDX-License-Identifier: Apache-2.0
"""State dicts as tensors and text, for the transfer to another process.

A tree of dicts, lists, tuples, numbers, texts, None and tensors becomes JSON, in which tensors are
numbered, and the list of these tensors. NumPy's arrays are sent as tensors. What JSON cannot
express is pickled.
"""
from __future__ import annotations

import base64
import json
import pickle
import random
import sys
from typing import Any, Dict, List, Tuple

import torch

Tree = Any
Shape = Tuple[str, List[int]]  # type and sizes of a tensor


def _encode(tree: Tree, tensors: List[torch.Tensor]) -> Any:
    """JSON: plain values as they are, everything else as [kind, content]."""
    if tree is None or type(tree) in (bool, int, float, str):
        return tree
    if isinstance(tree, torch.Tensor):
        tensors.append(tree.detach())
        return ["tensor", len(tensors) - 1]
    if type(tree) in (list, tuple):
        return [type(tree).__name__, [_encode(part, tensors) for part in tree]]
    if isinstance(tree, dict):
        pairs = [[_encode(k, tensors), _encode(v, tensors)] for k, v in tree.items()]
        return ["dict", pairs]
    numpy = sys.modules.get("numpy")
    if numpy is not None and type(tree) is numpy.ndarray and tree.dtype.kind in "iuf":
        raw = torch.from_numpy(numpy.ascontiguousarray(tree).reshape(-1).view(numpy.uint8).copy())
        return ["numpy", [tree.dtype.str, list(tree.shape), _encode(raw, tensors)]]
    return ["pickle", base64.b64encode(pickle.dumps(tree)).decode()]


def _decode(code: Any, tensors: List[torch.Tensor]) -> Tree:
    if not isinstance(code, list):
        return code
    kind, content = code
    if kind == "tensor":
        return tensors[content]
    if kind == "list":
        return [_decode(part, tensors) for part in content]
    if kind == "tuple":
        return tuple(_decode(part, tensors) for part in content)
    if kind == "dict":
        return {_decode(k, tensors): _decode(v, tensors) for k, v in content}
    if kind == "numpy":
        import numpy

        dtype, shape, raw = content
        return _decode(raw, tensors).numpy().view(dtype).reshape(shape)
    return pickle.loads(base64.b64decode(content))


def pack(tree: Tree) -> Tuple[bytes, List[torch.Tensor]]:
    """Text and contiguous CPU tensors, from which unpack() makes the tree again."""
    tensors: List[torch.Tensor] = []
    code = _encode(tree, tensors)
    shapes = [(str(t.dtype).split(".")[1], list(t.shape)) for t in tensors]
    return json.dumps([shapes, code]).encode(), [t.cpu().contiguous() for t in tensors]


class Arrival:
    """What the other side receives: `tensors` are filled by the caller, then tree() is the tree."""

    def __init__(self, text: bytes) -> None:
        shapes, self._code = json.loads(text)
        self.tensors = [torch.empty(size, dtype=getattr(torch, name)) for name, size in shapes]

    def tree(self) -> Tree:
        return _decode(self._code, self.tensors)


# --- random numbers ---


def random_state() -> Dict[str, Any]:
    """The generators of torch (CPU, the present GPU), Python and, if it is imported, NumPy."""
    state = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state["numpy"] = numpy.random.get_state()
    return state


def set_random_state(state: Dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])
    if "numpy" in state:
        import numpy

        numpy.random.set_state(state["numpy"])


def mix(*numbers: int) -> int:
    """63 bits that depend on all numbers (splitmix64, Steele et al. 2014)."""
    mask = (1 << 64) - 1
    out = 0
    for number in numbers:
        out = (out ^ (number & mask)) + 0x9E3779B97F4A7C15 & mask
        out = (out ^ out >> 30) * 0xBF58476D1CE4E5B9 & mask
        out = (out ^ out >> 27) * 0x94D049BB133111EB & mask
        out ^= out >> 31
    return out >> 1


def seed_all(number: int) -> None:
    """Seeds the generators of random_state()."""
    torch.default_generator.manual_seed(number)
    random.seed(number)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(number)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(number & 0xFFFFFFFF)
