# SPDX-License-Identifier: Apache-2.0
"""Handles of running operations, as torch.distributed's Work.

A handle borrows the tensors of its operation until the end, also when the program drops it. wait()
blocks in ls_work_wait_for(), which progresses the operation. A future is completed by the library's
progress thread through ls_work_then(); no thread of Python waits.
"""
from __future__ import annotations

import ctypes
import itertools
import math
import os
import threading
import time
import warnings
from collections import OrderedDict
from datetime import timedelta
from typing import Any, Callable, Dict, List, Optional, Sequence, TypeVar

import torch
from torch._C._distributed_c10d import ReduceOp, Work

from . import _cpp, _join, _lib, _profile
from ._lib import lib

SLICE_MS = 200  # between looks at Python's signals

# Before torch 2.7 C++ does not keep the Python part of a handle that it gets, and without that part
# its wait() never returns. So handles that calls return stay here until they are waited for, the
# newest ones at least: C++ waits soon after the start.
_UNWAITED_MAX = 2048 if _cpp.version() < (2, 7) else 0
_unwaited: "OrderedDict[int, Work]" = OrderedDict()  # by id()
Handle = TypeVar("Handle", bound=Work)


def keep_until_waited(work: Handle) -> Handle:
    """The handle, for the return of a call."""
    if _UNWAITED_MAX > 0:
        _unwaited[id(work)] = work
        if len(_unwaited) > _UNWAITED_MAX:
            _, oldest = _unwaited.popitem(last=False)
            if not oldest.is_completed():
                warnings.warn(
                    f"lockstep: more than {_UNWAITED_MAX} operations are pending; with torch "
                    f"{torch.__version__} the wait for the oldest one may never end"
                )
    return work


_numbers = itertools.count(1)
_waiting: Dict[int, "LockstepWork"] = {}  # by the argument of ls_work_then(): keeps them alive


@_lib.WorkEndFn
def _ended(number: int, end: Any) -> None:
    work = _waiting.pop(number)
    work._take_back()
    before = _join.enter_callback(True)
    try:
        text = end[0].text.decode(errors="replace")
        work._collect(end[0].status, text, end[0].source)
        if work._signal is not None:
            work._signal.set_result(None)
        del work
        if not before:
            _join.call_deferred()
    finally:
        _join.enter_callback(before)


def milliseconds(timeout: Optional[timedelta]) -> int:
    """A timeout of torch.distributed: 0 where it is not set."""
    return 0 if timeout is None else max(0, int(timeout.total_seconds() * 1000))


def timeout_of(opts: Any) -> int:
    """The milliseconds of a call's options: 0 where they are not set."""
    return milliseconds(getattr(opts, "timeout", None))


def write(target: torch.Tensor, result: torch.Tensor) -> None:
    """Copies a result of the same shape; autograd does not see it, as where the library writes.
    Elements that share one place in an expanded tensor get the value of the first."""
    with torch.inference_mode(target.is_inference()), torch.no_grad():
        for dimension, step in enumerate(target.stride()):
            if step == 0 and target.shape[dimension] > 1:
                target = target.narrow(dimension, 0, 1)
                result = result.narrow(dimension, 0, 1)
        target.copy_(result)


class PartOptions:
    """The options of a call, for each of the operations that it consists of."""

    asyncOp = True  # the call waits for all of them

    def __init__(self, opts: Any) -> None:
        self.reduceOp = getattr(opts, "reduceOp", ReduceOp.SUM)
        self.timeout = getattr(opts, "timeout", None)


class LockstepWork(Work):  # type: ignore[misc]
    """One operation. `finish` is called after its success, before the result is visible."""

    def __init__(
        self,
        comm: _join.Comm,
        handle: Optional[int],
        buffers: Any,
        value: Sequence[torch.Tensor],
        finish: Optional[Callable[[], None]] = None,
        timeout_ms: int = 0,
    ) -> None:
        super().__init__()
        self._comm = comm
        self._handle = handle
        self._buffers = buffers
        self._value = value
        self._finish = finish
        if timeout_ms > 0:
            lib.ls_work_set_timeout(handle, timeout_ms)
        self._lock = threading.Lock()  # guards the handle, which is freed once
        self._error: Optional[Exception] = None
        self._signal: Any = None  # a future that the end of the operation completes
        self._last: Any = None  # what completes last: this, or the end of the profiler's event
        self._future: Any = None
        self._source = -1
        self._handed: Optional[int] = None  # the handle that ls_work_then() has
        self._handed_lock = threading.Lock()  # held while it is used: it is not freed meanwhile
        self._has_ended = threading.Event()  # what ls_work_then() has

    # The state changes here only: the operation has ended.
    def _collect(self, status: int, text: str, source: int) -> None:
        self._source = source
        if status != _lib.OK:
            self._error = _lib.failure(status, text)
        elif self._finish is not None:
            try:
                self._finish()
            except Exception as error:
                self._error = error
        self._buffers = self._finish = None

    def _free(self) -> None:
        handle, self._handle = self._handle, None
        source = lib.ls_work_source(handle)
        status = lib.ls_work_wait(handle)
        self._collect(status, "" if status == _lib.OK else _lib.last_error(), source)

    def _wait_for_end(self, limit_ms: int = 0) -> None:
        """After limit_ms, unless it is 0, the operation times out, if it has not done so before."""
        end = time.monotonic() + limit_ms / 1000 if limit_ms > 0 else math.inf
        slice_ms = min(SLICE_MS, limit_ms or SLICE_MS)
        while lib.ls_work_wait_for(self._handle, slice_ms) == _lib.ETIMEOUT:
            left_ms = (end - time.monotonic()) * 1000
            slice_ms = int(max(1, min(SLICE_MS, left_ms)))
            if left_ms <= 0:
                lib.ls_work_set_timeout(self._handle, 0)
        self._free()

    def wait(self, timeout: Optional[timedelta] = None) -> bool:
        with self._lock:
            if self._handle is not None:
                self._wait_for_end(milliseconds(timeout))
        if self._last is not None:
            self._limit_handed(milliseconds(timeout))
            self._last.wait()
        _join.stay_if_over()
        _unwaited.pop(id(self), None)
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        if not self._lock.acquire(blocking=False):
            return False  # another thread waits for it
        try:
            if self._handle is not None:
                if not lib.ls_work_test(self._handle):
                    return False
                self._free()
        finally:
            self._lock.release()
        return self._last is None or bool(self._last.done())

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> Optional[Exception]:
        return self._error if self.is_completed() else None

    def result(self) -> List[torch.Tensor]:
        self.wait()
        return list(self._value)

    def source_rank(self) -> int:
        return self._source

    _source_rank = source_rank

    def _outcome(self, _signal: Any) -> List[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return list(self._value)

    def get_future(self) -> Any:
        may_defer = False  # a program that has waited before finds the future complete
        with self._lock:
            if self._future is None:
                if self._handle is not None and _join.in_callback():
                    # The caller may wait for the future on the thread that would complete it.
                    self._wait_for_end()
                    may_defer = True
                elif self._handle is not None and lib.ls_work_test(self._handle):
                    self._free()
                    may_defer = True
                self._start_future(may_defer=may_defer)
        return self._future

    def _start_future(self, record: Any = None, may_defer: bool = False) -> None:
        self._signal = self._last = torch.futures.Future()
        if record is not None:
            self._last = _profile.end_with(record, self._signal)
        # C++ readers of a future see only exceptions that are raised inside then().
        self._future = self._signal.then(self._outcome)
        if self._handle is not None:
            self._hand_over()
        elif may_defer and _join.is_deep():
            signal = self._signal
            _join.call_later(lambda: signal.set_result(None))
        else:
            self._signal.set_result(None)

    def end_event(self, record: Any) -> None:
        """Ends the profiler's event with the operation; wait() waits for this, too."""
        with self._lock:
            if self._future is None:
                self._start_future(record)
            else:
                self._last = _profile.end_with(record, self._signal)

    def _hand_over(self) -> None:
        """The library calls _ended() at the end; the handle is its own from here on."""
        number = next(_numbers)
        _waiting[number] = self
        handle, self._handle = self._handle, None
        self._handed = handle
        status = lib.ls_work_then(handle, _ended, number)
        if status != _lib.OK:
            del _waiting[number]
            self._handed, self._handle = None, handle
            raise _lib.failure(status)

    def _take_back(self) -> None:
        with self._handed_lock:
            self._handed = None
        self._has_ended.set()

    def _limit_handed(self, limit_ms: int) -> None:
        """After limit_ms, unless it is 0, what ls_work_then() has times out."""
        if limit_ms == 0 or self._handed is None or self._has_ended.wait(limit_ms / 1000):
            return
        with self._handed_lock:
            if self._handed is not None:
                lib.ls_work_set_timeout(self._handed, 0)

    def __del__(self) -> None:
        if self._handle is None or self._comm.process != os.getpid():
            return  # a forked child leaves its parent's alone
        if self._comm.handle is None:
            self._free()  # the group has ended, and with it the operation
            return
        keeper = LockstepWork(self._comm, self._handle, self._buffers, (), self._finish)
        keeper._hand_over()


def wait_at_once(
    comm: _join.Comm, handle: int, buffers: Any, finish: Optional[Callable[[], None]], opts: Any
) -> None:
    """Waits for an operation of ls_work_waited(), of which the program gets no handle."""
    has_ended = False
    try:
        has_ended = lib.ls_work_wait_for(handle, SLICE_MS) != _lib.ETIMEOUT
    finally:
        # It takes long, or Ctrl-C has ended the wait: then the operation still needs the buffers.
        if not has_ended:
            limit_ms = timeout_of(opts)
            left_ms = max(1, limit_ms - SLICE_MS) if limit_ms > 0 else 0
            work = LockstepWork(comm, handle, buffers, (), finish, left_ms)
    if not has_ended:
        work.wait()
        return
    status = lib.ls_work_wait(handle)
    _join.stay_if_over()
    _lib.check(status)
    if finish is not None:
        finish()


class LockstepWorks(Work):  # type: ignore[misc]
    """Several operations that one call has started; it ends with the last one."""

    def __init__(self, works: Sequence[LockstepWork], value: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._works = works
        self._value = value
        self._last: Any = None  # the end of the profiler's event
        keep_until_waited(self)

    def wait(self, timeout: Optional[timedelta] = None) -> bool:
        for work in self._works:
            work.wait() if timeout is None else work.wait(timeout)
        if self._last is not None:
            self._last.wait()
        _unwaited.pop(id(self), None)
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def exception(self) -> Optional[Exception]:
        errors = (work.exception() for work in self._works)
        return next((error for error in errors if error is not None), None)

    def result(self) -> List[torch.Tensor]:
        self.wait()
        return list(self._value)

    def source_rank(self) -> int:
        return -1

    _source_rank = source_rank

    def end_event(self, record: Any) -> None:
        self._last = _profile.end_with(record, self.get_future())

    def get_future(self) -> Any:
        futures = [work.get_future() for work in self._works]

        def outcome(ended: Any) -> List[torch.Tensor]:
            for future in ended.value():
                future.value()
            return list(self._value)

        return torch.futures.collect_all(futures).then(outcome)
