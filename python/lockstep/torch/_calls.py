# SPDX-License-Identifier: Apache-2.0
"""The last calls of this rank in each group of torch.distributed, for watch().

Calls are noted by c10d's hooks where torch has them (2.15), else by functions in the place of
torch.distributed's. The latter do not see the calls of DistributedDataParallel, which is in C++; of
those the number is known, where the backend counts its operations.
"""
from __future__ import annotations

import functools
import inspect
import os
import weakref
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Sequence, Tuple

import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.distributed import distributed_c10d

from . import _site

Call = Tuple[int, int, Any, int]  # number from 1, operation, code (or None), line

KEPT = 64
HOOK_ID = 0x6C73  # among the hooks of a group


class Calls:
    """The calls in one group."""

    def __init__(self) -> None:
        self._count = 0
        self.last: Deque[Call] = deque(maxlen=KEPT)
        self.has_messages = False

    def note(self, operation: int) -> None:
        """One more call, by the function that calls the caller."""
        frame = _site.program_frame(2)
        self._count += 1
        code, line = (None, 0) if frame is None else (frame.f_code, frame.f_lineno)
        self.last.append((self._count, operation, code, line))

    def state(self, n: int) -> Tuple[int, str]:
        """The number of calls, and a letter for each of the last n."""
        last = list(self.last)[-n:]
        return last[-1][0] if last else 0, "".join(chr(ord("a") + call[1]) for call in last)


class Source:
    """Notes the calls of all groups from start() to stop()."""

    names: Sequence[str] = ()  # of operations, by number; the same on all ranks

    def __init__(self) -> None:
        self._calls: Dict[str, Calls] = {}
        self._replaced: List[Tuple[Any, str, Any]] = []

    def start(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        for module, name, original in reversed(self._replaced):
            setattr(module, name, original)
        self._replaced.clear()

    def of(self, group: str) -> Calls:
        calls = self._calls.get(group)
        return self._calls.setdefault(group, Calls()) if calls is None else calls

    def counted(self, group: Any, name: str) -> int:
        """The number of operations of a group that its backend has counted; -1: unknown, or not
        comparable between ranks."""
        return -1

    def describe(self, group: str, number: int) -> str:
        """ "all_reduce (train.py:41)": call `number`, or the last one for 0; "" if it is not known.
        """
        for call, operation, code, line in reversed(list(self.of(group).last)):
            if number in (0, call):
                name = self.names[operation]
                return f"{name} ({os.path.basename(code.co_filename)}:{line})" if code else name
        return ""

    def _replace(self, name: str, make: Callable[[Any], Any]) -> None:
        """Puts make(function) in the place of a function of torch.distributed."""
        original = getattr(distributed_c10d, name)
        made = make(original)
        for module in (dist, distributed_c10d):
            if getattr(module, name, None) is original:
                self._replaced.append((module, name, original))
                setattr(module, name, made)


class Functions(Source):
    """Functions in the place of torch.distributed's note the calls."""

    names = (
        "all_reduce",
        "broadcast",
        "reduce",
        "all_gather",
        "all_gather_into_tensor",
        "gather",
        "scatter",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "all_to_all",
        "all_to_all_single",
        "barrier",
    )

    def start(self) -> None:
        for number, name in enumerate(self.names):
            self._replace(name, functools.partial(self._noting, number))
        for name in ("send", "recv"):
            self._replace(name, functools.partial(self._noting, -1))
        self._replace("batch_isend_irecv", self._noting_batch)

    def _noting(self, number: int, original: Any) -> Any:
        position = list(inspect.signature(original).parameters).index("group")
        names, member = distributed_c10d._world.pg_names, distributed_c10d.GroupMember

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            group = args[position] if len(args) > position else kwargs.get("group")
            name = names.get(member.WORLD if group is None else group)
            if name is None:
                pass  # this rank is no member
            elif number < 0:
                self.of(name).has_messages = True
            else:
                self.of(name).note(number)
            return original(*args, **kwargs)

        return call

    def _noting_batch(self, original: Any) -> Any:
        names, member = distributed_c10d._world.pg_names, distributed_c10d.GroupMember

        @functools.wraps(original)
        def call(p2p_op_list: Any) -> Any:
            for op in p2p_op_list:
                name = names.get(op.group or member.WORLD)
                if name is not None:
                    self.of(name).has_messages = True
            return original(p2p_op_list)

        return call

    def counted(self, group: Any, name: str) -> int:
        if self.of(name).has_messages:
            return -1  # gloo counts messages too, which only two ranks have
        try:
            return int(group._get_sequence_number_for_group())
        except RuntimeError:
            return -1


class Hooks(Source):
    """c10d's hooks note the calls."""

    def __init__(self) -> None:
        super().__init__()
        members = _distributed_c10d.HookOpName.__members__
        self.names = [name.lower() for name in members]  # numbered from 0
        self._messages = (int(members["SEND"]), int(members["RECV"]))
        self._attached: "weakref.WeakSet[Any]" = weakref.WeakSet()

    def start(self) -> None:
        for group, name in list(distributed_c10d._world.pg_names.items()):
            self._attach(group, name)
        self._replace("_new_process_group_helper", self._attaching)
        self._replace("split_group", self._attaching)

    def stop(self) -> None:
        super().stop()
        for group in list(self._attached):  # a hook must not outlive the interpreter
            group.unregister_pre_hook(HOOK_ID)

    def _attach(self, group: Any, name: str) -> None:
        calls = self.of(name)
        messages = self._messages

        def hook(args: Any) -> None:
            operation = int(args.name)
            if operation not in messages:
                calls.note(operation)

        group.register_pre_hook(HOOK_ID, hook)
        self._attached.add(group)

    def _attaching(self, original: Any) -> Any:
        @functools.wraps(original)
        def create(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            group = made[0] if isinstance(made, tuple) else made
            name = distributed_c10d._world.pg_names.get(group)
            if name is not None:
                self._attach(group, name)
            return made

        return create


def source() -> Source:
    """What notes calls with the installed torch."""
    return Hooks() if hasattr(distributed_c10d.ProcessGroup, "register_pre_hook") else Functions()
