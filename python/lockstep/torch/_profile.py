# SPDX-License-Identifier: Apache-2.0
"""Operations of the Python form in torch's profiler, with the names and shapes of the C++ form.

An event starts with the call and ends with the operation.
"""
from __future__ import annotations

import functools
import threading
from typing import Any, Callable, List, TypeVar

import torch

_in_event = threading.local()  # an operation that consists of others has one event
Method = TypeVar("Method", bound=Callable[..., Any])


def _tensors(value: Any) -> List[torch.Tensor]:
    """The tensors of an argument: one, or a list of them."""
    if isinstance(value, torch.Tensor):
        return [value]
    if not isinstance(value, (list, tuple)):
        return []
    return [tensor for tensor in value if isinstance(tensor, torch.Tensor)]


def event(name: str, source: int = 0) -> Callable[[Method], Method]:
    """For a method of a group that starts an operation and returns its handle: an event while the
    profiler runs. `source` is the position of the argument with the tensors that are read."""

    def decorated(method: Method) -> Method:
        @functools.wraps(method)
        def call(self: Any, *arguments: Any, **named: Any) -> Any:
            if not torch.autograd._profiler_enabled() or getattr(_in_event, "active", False):
                return method(self, *arguments, **named)
            inputs = _tensors(arguments[source]) if len(arguments) > source else []
            title = f"{self.name()}:{name}"
            record = torch.autograd._record_function_with_args_enter(title, *inputs)
            _in_event.active = True
            try:
                work = method(self, *arguments, **named)
            except BaseException:
                torch.autograd._record_function_with_args_exit(record)
                raise
            finally:
                _in_event.active = False
            work.end_event(record)
            return work

        return call  # type: ignore[return-value]

    return decorated


def end_with(record: Any, future: Any) -> Any:
    """A future that completes after `future` and the end of the event."""
    starter = threading.get_ident()
    signal = torch.futures.Future()
    last = torch.ops.profiler._call_end_callbacks_on_jit_fut._RecordFunction(record, signal)

    def end(_future: Any) -> None:
        # The profiler takes events that end in another thread for asynchronous ones, and this is
        # one, also where it ends within the call.
        if threading.get_ident() == starter:
            threading.Thread(target=signal.set_result, args=(None,)).start()
        else:
            signal.set_result(None)

    future.add_done_callback(end)
    return last
