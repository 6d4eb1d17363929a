# SPDX-License-Identifier: Apache-2.0
"""Keeps torch.compile out of the Python form: a compiled program calls it as it is.

torch.compiler.disable() does the same, but imports Dynamo, which takes seconds.
"""
from __future__ import annotations

import types
from typing import Any, Callable

import torch


def _run_as_it_is() -> Callable[[Any], None]:
    """The function that has a code object run, and what it calls, without Dynamo's frames."""
    frames = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        strategy = frames._FrameExecStrategy(skip, skip)
        return lambda code: frames.set_code_exec_strategy(code, strategy)
    return getattr(frames, "skip_code", None) or (lambda code: None)


def not_traced(kind: type) -> None:
    """For all methods of a class."""
    run_as_it_is = _run_as_it_is()
    for method in vars(kind).values():
        if isinstance(method, types.FunctionType):
            method._torchdynamo_disable = True  # type: ignore[attr-defined]
            method._torchdynamo_disable_msg = "it calls liblockstep"  # type: ignore[attr-defined]
            run_as_it_is(method.__code__)
