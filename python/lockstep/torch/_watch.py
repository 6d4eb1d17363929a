# SPDX-License-Identifier: Apache-2.0
"""watch(): the health of a job whose data goes through another backend, such as NCCL.

The ranks join a control group of Lockstep. Twice a second a thread of each rank sends rank 0 the
numbers and names of its last calls, and gets a verdict; no data of the program travels. When a rank
dies, the group breaks, and the next exchange fails with that rank's name. Lines of the program and
stacks are exchanged only after rank 0 has found a difference.
"""
from __future__ import annotations

import json
import os
import sys
import threading
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from . import _calls, _errors, _join, _site
from ._lib import BackendError, lib
from ._pg import LockstepGroup

PERIOD_S = 0.5
JOIN_MS = 600_000
COMPARED = 32  # last calls of a group that rank 0 gets
STATE_BYTES, VERDICT_BYTES = 4096, 256
STACK_LINES, LINE_MAX = 8, 100  # shown of a stack
LETTER_BYTES = 12  # of any letter in JSON, at most
ANSWER_BYTES = 256 + (STACK_LINES + 1) * LINE_MAX * LETTER_BYTES  # a stack, a call, numbers

Json = Dict[str, Any]

_OF_ROOT = SimpleNamespace(rootRank=0, rootTensor=0, timeout=None)


def _encode(value: Json, size: int) -> torch.Tensor:
    """The value as text of `size` bytes."""
    data = json.dumps(value, separators=(",", ":")).encode()
    return torch.frombuffer(bytearray(data.ljust(size)), dtype=torch.uint8)


def _decode(data: torch.Tensor) -> Json:
    value: Json = json.loads(data.numpy().tobytes())
    return value


class _Judge:
    """Finds differences in the states of all ranks; on rank 0. A state has for each group the
    rank's number of calls, the number that the backend has counted (or -1), and the last
    operations."""

    def __init__(self, rounds_late: int) -> None:
        self._rounds_late = rounds_late
        self._round = 0
        self._since: Dict[str, Tuple[Any, int]] = {}  # by group: the numbers, and since when
        self._reported: Set[Tuple[str, str, int]] = set()

    def verdict(self, states: List[Json]) -> Json:
        self._round += 1
        for group in sorted(set().union(*states)):
            by_rank = {rank: state[group] for rank, state in enumerate(states) if group in state}
            for kind, find in (("different", self._different), ("late", self._late)):
                number = find(group, by_rank)
                if number is not None and (group, kind, number) not in self._reported:
                    self._reported.add((group, kind, number))
                    return {"group": group, "kind": kind, "number": number}
        return {}

    def _different(self, group: str, by_rank: Dict[int, Any]) -> Optional[int]:
        """The number of a call in which two ranks call different operations."""
        count, _, first = next(iter(by_rank.values()))
        for other_count, _, other in by_rank.values():
            since = max(count - len(first), other_count - len(other))
            until = min(count, other_count)
            for number in range(since, until):
                if first[number - count] != other[number - other_count]:
                    return number + 1
        return None

    def _late(self, group: str, by_rank: Dict[int, Any]) -> Optional[int]:
        """The most calls of a rank, when others have had fewer for some time."""
        counted = [state[1] for state in by_rank.values()]
        numbers = counted if min(counted) >= 0 else [state[0] for state in by_rank.values()]
        seen, since = self._since.get(group, (None, 0))
        if seen != numbers:
            self._since[group] = (numbers, self._round)
        elif min(numbers) < max(numbers) and self._round - since >= self._rounds_late:
            return max(numbers)
        return None


class Watch:
    """A running watch. `failure` is the text of the failure that has ended it, or None."""

    def __init__(
        self, comm: _join.Comm, store: Any, late_s: float, on_failure: Callable[[str], None]
    ) -> None:
        self._comm = comm
        self._group = LockstepGroup(comm, store, timedelta(days=1))
        self._on_failure = on_failure
        self._judge = _Judge(max(1, round(late_s / PERIOD_S)))
        self._source = _calls.source()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lockstep-watch", daemon=True)
        self.failure: Optional[str] = None

    def start(self) -> None:
        self._source.start()
        self._thread.start()
        _join.before_close.append(self.stop)

    def stop(self) -> None:
        """Ends the watch, on all ranks. At the end of a program it is called by itself."""
        global _running
        if self._stopping.is_set():
            return
        self._stopping.set()
        _join.before_close.remove(self.stop)
        if threading.current_thread() is not self._thread:  # as on_failure may call this
            self._thread.join()
        self._source.stop()
        self._group.shutdown()
        if _running is self:
            _running = None

    # --- by the thread ---

    def _run(self) -> None:
        try:
            while True:
                verdict = self._exchange()
                if verdict.get("stop"):
                    return
                if verdict:
                    self._report(verdict)
                self._stopping.wait(PERIOD_S)
        except BackendError as error:  # a rank is lost
            self._fail(str(error))
        except Exception as error:
            text = _errors.describe(error)
            self._comm.abort(text)  # the others wait for this rank
            self._fail(text)

    def _fail(self, text: str) -> None:
        self.failure = text
        if not self._stopping.is_set():
            _print(text)
            self._on_failure(text)

    def _gather(self, value: Json, size: int) -> List[Json]:
        """The values of all ranks, on rank 0."""
        data = _encode(value, size)
        everything = torch.empty((self._group.size(), size), dtype=torch.uint8)
        self._group.gather_single(everything, data, _OF_ROOT).wait()
        return [_decode(row) for row in everything] if self._group.rank() == 0 else []

    def _exchange(self) -> Json:
        """What rank 0 has found in the states of all ranks; "stop": the watch ends."""
        states = self._gather(self._state(), STATE_BYTES)
        verdict: Json = {}
        if any(state["stop"] for state in states):
            verdict = {"stop": True}
        elif states:
            verdict = self._judge.verdict([state["groups"] for state in states])
        data = _encode(verdict, VERDICT_BYTES)
        self._group.broadcast([data], _OF_ROOT).wait()
        return _decode(data)

    def _state(self) -> Json:
        groups: Json = {}
        left = STATE_BYTES - 64
        for group, name in list(distributed_c10d._world.pg_names.items()):
            count, last = self._source.of(name).state(COMPARED)
            groups[name] = [count, self._source.counted(group, name), last]
            left -= len(json.dumps({name: groups[name]}))
            if left < 0:  # of very many groups the oldest are compared
                del groups[name]
                break
        return {"stop": self._stopping.is_set(), "groups": groups}

    def _report(self, verdict: Json) -> None:
        """Prints what the ranks were doing, on rank 0."""
        name, number = verdict["group"], verdict["number"]
        is_late = verdict["kind"] == "late"
        stack = _site.main_stack(program_only=True)[:STACK_LINES]
        answer = {
            "member": name in distributed_c10d._world.pg_names.values(),
            "count": self._source.of(name).state(1)[0],
            "call": self._source.describe(name, 0 if is_late else number)[:LINE_MAX],
            "stack": [line[:LINE_MAX] for line in stack],
        }
        answers = self._gather(answer, ANSWER_BYTES)
        ranks = {rank: a for rank, a in enumerate(answers) if a.get("member")}
        if not ranks:
            return
        head = (
            f"some ranks have been behind in calls of group {name} for a while"
            if is_late
            else f"ranks call different operations as call {number} of group {name}"
        )
        _print("\n".join([head, *_lines(ranks, is_late)]))


def _lines(ranks: Dict[int, Json], is_late: bool) -> List[str]:
    """A line for each rank; equal ones are shown once."""
    texts: Dict[str, List[int]] = {}
    for rank, answer in ranks.items():
        call = answer["call"] or "a call that is not known"
        text = f"after call {answer['count']}, {call}" if is_late else call
        if answer["stack"]:
            text += "; now at " + " < ".join(answer["stack"])
        texts.setdefault(text, []).append(rank)
    return [f"  rank {', '.join(map(str, which))}: {text}" for text, which in texts.items()]


def _print(text: str) -> None:
    print(f"lockstep.torch.watch: {text}", file=sys.stderr, flush=True)


def abort_groups(_text: str) -> None:
    """Aborts all groups of torch.distributed, so that no call of this process waits for ever."""
    abort = getattr(distributed_c10d, "_abort_process_group", None)
    if abort is None:
        _print("this torch cannot abort groups")
        return
    try:
        abort()
    except Exception as error:
        _print(f"the groups could not be aborted: {error}")


_running: Optional[Watch] = None
_n_started = 0


def watch(on_failure: Callable[[str], None] = abort_groups) -> Watch:
    """Watches the ranks of the default group; all of them call it, after init_process_group().

    When a rank is lost, every other rank prints which one, and calls on_failure with that text, in
    a thread of its own; by default it aborts the groups. Rank 0 prints calls that differ, and ranks
    that are behind for LOCKSTEP_LATE_MS (10 s).
    """
    global _running, _n_started
    if _running is not None:
        return _running
    if not hasattr(distributed_c10d, "_world"):
        raise RuntimeError(f"lockstep.torch.watch: torch {torch.__version__} is older than 2.4")
    rank, size = dist.get_rank(), dist.get_world_size()
    _n_started += 1
    name = f"lockstep.torch.watch/{_n_started}"
    store = dist.PrefixStore(name, distributed_c10d._get_default_store())
    comm = _join.create_group(range(size), name, JOIN_MS)
    comm = comm or _join.join(store, rank, size, JOIN_MS)
    lib.ls_comm_set_timeout(comm.handle, -1)
    late_s = int(os.environ.get("LOCKSTEP_LATE_MS") or "10000") / 1000
    _running = Watch(comm, store, late_s, on_failure)
    _running.start()
    return _running
