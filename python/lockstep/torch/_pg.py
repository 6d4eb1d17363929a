# SPDX-License-Identifier: Apache-2.0
"""The process group in Python: torch.distributed's operations on liblockstep, for CPU tensors.

Contiguous tensors are passed to the library as they are. Others are copied before, and after.
Methods have the names of torch up to 2.14 (_allgather_base) and since 2.15 (all_gather_single).
"""
from __future__ import annotations

import ctypes
import functools
from datetime import timedelta
from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from . import _cpp, _dynamo, _join, _lib, _monitored, _site, _sparse
from ._lib import lib
from ._profile import event
from ._refusals import check
from ._types import folded, moved, name_of, reduction
from ._work import (
    LockstepWork,
    LockstepWorks,
    PartOptions,
    keep_until_waited,
    milliseconds,
    timeout_of,
    wait_at_once,
    write,
)

Tensors = Sequence[torch.Tensor]
Finish = Optional[Callable[[], None]]

# As for the C++ form; older ones may wait for the work of each call.
TORCH_TAKES_NO_WORK = _cpp.version() >= _cpp.OLDEST

_CPU = torch.device("cpu")


class _Devices(List[torch.device]):
    """The devices of a group. False as a condition: torch 2.15 then attaches no flight recorder of
    its own, which needs a group in C++."""

    def __bool__(self) -> bool:
        return False


def _one(tensors: Any) -> torch.Tensor:
    """The tensor of a call; c10d passes lists of one."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    check(len(tensors) == 1, "tensors", len(tensors))
    only: torch.Tensor = tensors[0]
    return only


def _one_list(lists: Any) -> Tensors:
    check(len(lists) == 1, "lists", len(lists))
    only: Tensors = lists[0]
    return only


def _list(what: str, tensors: Any) -> Tensors:
    """The tensors of a call that takes several."""
    found: Tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
    check(len(found) > 0, "none", what)
    return found


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    check(tensor.is_cpu, "device", tensor.device)
    check(tensor.layout == torch.strided, "layout")
    return tensor


def _copier(target: torch.Tensor, result: torch.Tensor) -> Callable[[], None]:
    return functools.partial(write, target, result)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether its memory has its elements one after the other, as they are."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _source(tensor: torch.Tensor) -> torch.Tensor:
    """What is read: the tensor, or a contiguous copy."""
    if _is_plain(_on_cpu(tensor)):
        return tensor
    return tensor.contiguous().resolve_conj().resolve_neg()


def _target(tensor: torch.Tensor, copy: bool = False) -> Tuple[torch.Tensor, Finish]:
    """What is written, and the function that moves it to the tensor afterwards; `copy`: it is
    read, too."""
    if _is_plain(_on_cpu(tensor)):
        return tensor, None
    dense = _source(tensor) if copy else torch.empty(tensor.shape, dtype=tensor.dtype)
    return dense, _copier(tensor, dense)


def _extent(tensor: torch.Tensor) -> Tuple[int, int]:
    """The addresses of its first element and behind its last one."""
    last = sum((n - 1) * step for n, step in zip(_on_cpu(tensor).shape, tensor.stride()))
    first = tensor.data_ptr()
    return first, first + (last + 1) * tensor.element_size()


def _overlap(extents: Sequence[Tuple[int, int]]) -> bool:
    ordered = sorted(extents)
    return any(before[1] > after[0] for before, after in zip(ordered, ordered[1:]))


def _share_memory(tensors: Tensors) -> bool:
    """Whether the memory of one may overlap with that of another."""
    return _overlap([_extent(tensor) for tensor in tensors if tensor.numel() > 0])


def _pairs_share_memory(outputs: Tensors, inputs: Tensors) -> bool:
    """The same for operations; the two tensors of one operation may share memory."""
    extents: List[Tuple[int, int]] = []
    for pair in zip(outputs, inputs):
        both = [_extent(tensor) for tensor in pair if tensor.numel() > 0]
        is_in_place = _overlap(both)
        extents += [(min(both)[0], max(end for _, end in both))] if is_in_place else both
    return _overlap(extents)


def _counts(values: Sequence[int]) -> Any:
    return (ctypes.c_size_t * len(values))(*values)


def _addresses(tensors: Tensors) -> Any:
    return (ctypes.c_void_p * len(tensors))(*[tensor.data_ptr() for tensor in tensors])


def _targets(tensors: Tensors, sources: Tensors = ()) -> Tuple[List[torch.Tensor], Finish]:
    """As _target(), for a list. Where they share memory, also with `sources`, all sources are read
    before the first is written, and the last one is written last."""
    pairs = [_target(tensor) for tensor in tensors]
    if _share_memory([*tensors, *sources]):
        news = [torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in tensors]
        pairs = [(new, _copier(tensor, new)) for tensor, new in zip(tensors, news)]
    copies = [copy for _, copy in pairs if copy is not None]

    def finish() -> None:
        for copy in copies:
            copy()

    return [dense for dense, _ in pairs], finish if copies else None


def _divided(tensors: Tensors) -> Tuple[torch.Tensor, Finish]:
    """A flat tensor whose parts are moved to the tensors afterwards."""
    sizes = [_on_cpu(tensor).numel() for tensor in tensors]
    flat = torch.empty(sum(sizes), dtype=tensors[0].dtype)

    def finish() -> None:
        for tensor, part in zip(tensors, flat.split(sizes)):
            write(tensor, part.view(tensor.shape))

    return flat, finish


def _same_type(what: str, tensors: Tensors) -> None:
    for tensor in tensors:
        _on_cpu(tensor)
    check(all(tensor.dtype == tensors[0].dtype for tensor in tensors), "types", what)


def _same_size(what: str, tensors: Tensors, one: torch.Tensor) -> None:
    _same_type(what, [one, *tensors])
    for tensor in tensors:
        check(tensor.numel() == one.numel(), "sizes", what, tensor.numel(), one.numel())


def _same_length(what: str, one: Sequence[Any], other: Sequence[Any]) -> None:
    check(len(one) == len(other), "lengths", what, len(one), len(other))


def _copied_to_others(tensors: Tensors, result: torch.Tensor, finish: Finish) -> Finish:
    """Old calls have several tensors, which all get the result."""
    if len(tensors) == 1:
        return finish

    def finish_all() -> None:
        if finish is not None:
            finish()
        for tensor in tensors:
            if tensor is not result:
                write(tensor, result)

    return finish_all


class Options:
    """What torch's programs read from a backend's options."""

    def __init__(self, timeout: timedelta) -> None:
        self._timeout = timeout
        self.backend = "lockstep"


class LockstepGroup(ProcessGroup):  # type: ignore[misc]
    """A group of ranks. All of them start the same collectives in the same order."""

    supports_splitting = True
    supports_coalescing = False

    def __init__(
        self, comm: _join.Comm, store: Any, timeout: timedelta, name: str = "lockstep"
    ) -> None:
        super().__init__(comm.rank, comm.size)
        self._comm = comm
        self._store = store
        self._name = name
        self._set_name = self._set_desc = ""
        self._sequence = 0
        self._started: Optional[List[LockstepWork]] = None  # inside _start_coalescing()
        self._monitored = _monitored.Barrier(store, comm.rank, comm.size)
        self._options = Options(timeout)
        self.bound_device_id = None

    # --- what c10d asks of a group ---

    def name(self) -> str:
        return self._name

    def getBackendName(self) -> str:
        return "lockstep"  # for C++, which takes a group named gloo for its own class

    _get_backend_name = getBackendName

    @property
    def options(self) -> Options:  # torch 2.4 has it as a property, too
        return self._options

    def rank(self) -> int:
        return self._comm.rank

    def size(self) -> int:
        return self._comm.size

    def getSize(self) -> int:
        return self._comm.size

    def getRank(self) -> int:
        return self._comm.rank

    def getGroupName(self) -> str:
        return self._set_name

    def setGroupName(self, name: str) -> None:
        self._set_name = name

    def getGroupDesc(self) -> str:
        return self._set_desc

    def setGroupDesc(self, desc: str) -> None:
        self._set_desc = desc

    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc

    @property
    def group_name(self) -> str:
        return self._set_name

    @property
    def group_desc(self) -> str:
        return self._set_desc

    @property
    def _device_types(self) -> List[torch.device]:
        return _Devices([_CPU])

    def _get_backend(self, device: Any) -> "LockstepGroup":
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"lockstep: the group has no backend for {device}")
        return self

    def get_group_store(self) -> Any:
        return self._store

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def set_timeout(self, timeout: timedelta) -> None:
        lib.ls_comm_set_timeout(self._handle(), milliseconds(timeout))
        self.options._timeout = timeout

    _set_default_timeout = _set_timeout = set_timeout

    def shutdown(self) -> None:
        self._comm.close()

    def abort(self) -> None:
        self._comm.abort("the group was aborted")  # other threads may be using it: it stays

    # --- starting operations ---

    def _is_waited(self, opts: Any) -> bool:
        """Whether a call with these options returns after the end of its operation, without a
        handle. The profiler's event ends with a handle."""
        return (
            TORCH_TAKES_NO_WORK
            and not getattr(opts, "asyncOp", True)
            and self._started is None
            and not torch.autograd._profiler_enabled()
        )

    def _handle(self, shape: Any = None) -> int:
        """The group, for the call that starts an operation on a tensor of this shape."""
        handle = self._comm.handle
        if handle is None:
            _join.stay_if_over()
            raise _lib.BackendError("lockstep: the group has ended (destroy_process_group)")
        _site.mark(shape)
        return handle

    def _out(self, out: ctypes.c_void_p, opts: Any) -> Any:
        """Where a call with these options puts the handle of its operation."""
        address = ctypes.byref(out)
        return lib.ls_work_waited(address) if self._is_waited(opts) else address

    def _work(
        self,
        status: int,
        out: ctypes.c_void_p,
        opts: Any,
        buffers: Any,
        value: Tensors,
        finish: Finish = None,
    ) -> Any:
        if status != _lib.OK:
            raise _lib.failure(status)
        self._sequence += 1
        if self._is_waited(opts):
            wait_at_once(self._comm, out.value, buffers, finish, opts)
            return None
        work = keep_until_waited(
            LockstepWork(self._comm, out.value, buffers, value, finish, timeout_of(opts))
        )
        if self._started is not None:
            self._started.append(work)
        return work

    def _start_coalescing(self, _device: Any = None) -> None:
        self._started = []

    def _end_coalescing(self, _device: Any = None) -> LockstepWorks:
        started, self._started = self._started or [], None
        return LockstepWorks(started, ())

    def _with_copies(self, call: Any, outputs: Tensors, inputs: Tensors, opts: Any) -> LockstepWork:
        """A coalesced call whose tensors share memory: all inputs are read before a result is
        written, and the last output is written last. Blocks."""
        results = [torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in outputs]
        work = call(results, [tensor.clone() for tensor in inputs], opts)
        return self._copied(work, outputs, results)

    def _copied(self, work: Any, outputs: Tensors, results: Tensors) -> LockstepWork:
        work.wait()
        for output, result in zip(outputs, results):
            write(output, result)
        return keep_until_waited(LockstepWork(self._comm, None, None, outputs))

    # --- reductions ---

    @event("all_reduce")
    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        tensors = _list("all_reduce", tensors)
        tensor = tensors[0]
        if tensor.layout != torch.strided:
            name = name_of(_operation(opts))
            _sparse.all_reduce(self, tensors, name, getattr(opts, "timeout", None))
            return keep_until_waited(LockstepWork(self._comm, None, None, tensors))
        if len(tensors) > 1:
            _same_size("all_reduce", tensors, tensor)
            tensor = folded(tensors, name_of(_operation(opts)))
        plan = reduction(tensor.dtype, _operation(opts))
        dst, finish = _target(tensor, copy=True)
        src = dst
        if not plan.is_direct():
            src, dst, finish = _converted(plan, tensor, self._comm.size)
        finish = _copied_to_others(tensors, tensor, finish)
        out = ctypes.c_void_p()
        status = lib.ls_all_reduce(
            self._handle(tensor.shape),
            src.data_ptr(),
            dst.data_ptr(),
            dst.numel() * plan.width,
            plan.dtype,
            plan.op,
            self._out(out, opts),
        )
        return self._work(status, out, opts, (src, dst), tensors, finish)

    @event("all_reduce")
    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Any:
        part = PartOptions(opts)
        if _share_memory(tensors):
            copies = [tensor.clone() for tensor in tensors]
            return self._copied(self.allreduce_coalesced(copies, part), tensors, copies)
        return LockstepWorks([self.allreduce([tensor], part) for tensor in tensors], tensors)

    @event("reduce")
    def reduce(self, tensors: Any, opts: Any) -> Any:
        tensor = _one(tensors)
        plan = reduction(tensor.dtype, _operation(opts))
        is_root = opts.rootRank == self._comm.rank
        if is_root:
            dst, finish = _target(tensor, copy=True)
            src = dst
        else:
            src, finish = _source(tensor), None
            dst = src
        if not plan.is_direct():
            src, dst, finish = _converted(plan, tensor, self._comm.size)
        out = ctypes.c_void_p()
        status = lib.ls_reduce(
            self._handle(tensor.shape),
            src.data_ptr(),
            dst.data_ptr() if is_root else None,
            src.numel() * plan.width,
            plan.dtype,
            plan.op,
            opts.rootRank,
            self._out(out, opts),
        )
        return self._work(status, out, opts, (src, dst), [tensor], finish if is_root else None)

    def _reduce_parts(
        self, target: torch.Tensor, source: torch.Tensor, sizes: Sequence[int], opts: Any
    ) -> Any:
        """target = the rank's part of the reduction of `source`, which is contiguous."""
        plan = reduction(source.dtype, _operation(opts))
        dst, finish = _target(target)
        if not plan.is_direct():
            source = _prepared(plan, source)
        if plan.widened is not None or plan.is_divided:
            dst = torch.empty(target.shape, dtype=source.dtype)
            finish = _finisher(plan, target, dst, self._comm.size)
        out = ctypes.c_void_p()
        counts = [size * plan.width for size in sizes]
        is_even = len(set(counts)) == 1  # the C++ form, which another rank may have, calls the same
        status = (lib.ls_reduce_scatter if is_even else lib.ls_reduce_scatter_v)(
            self._handle(source.shape),
            source.data_ptr(),
            dst.data_ptr(),
            counts[0] if is_even else _counts(counts),
            plan.dtype,
            plan.op,
            self._out(out, opts),
        )
        return self._work(status, out, opts, (source, dst), [target], finish)

    @event("reduce_scatter", 1)
    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        target, parts = _one(outputs), _one_list(inputs)
        self._check_list("reduce_scatter", parts, target)
        sizes = [part.numel() for part in parts]
        plan = reduction(target.dtype, _operation(opts))
        _same_size("reduce_scatter", [parts[self._comm.rank]], target)
        if not plan.is_direct() or len(set(sizes)) > 1:
            flat = torch.cat([_on_cpu(part).reshape(-1) for part in parts])
            return self._reduce_parts(target, _source(flat), sizes, opts)
        sources = [_source(part) for part in parts]
        dst, finish = _target(target)
        out = ctypes.c_void_p()
        status = lib.ls_reduce_scatter_list(
            self._handle(target.shape),
            _addresses(sources),
            dst.data_ptr(),
            sizes[0] * plan.width,
            plan.dtype,
            plan.op,
            self._out(out, opts),
        )
        return self._work(status, out, opts, (sources, dst), [target], finish)

    @event("_reduce_scatter_base", 1)
    def reduce_scatter_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: Any = None
    ) -> Any:
        self._check_whole("reduce_scatter", source, output)
        return self._reduce_parts(output, _source(source), [output.numel()] * self._comm.size, opts)

    _reduce_scatter_base = reduce_scatter_single

    @event("reduce_scatter_tensor_coalesced", 1)
    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Any:
        part = PartOptions(opts)
        _same_length("reduce_scatter_tensor_coalesced", outputs, inputs)
        if _pairs_share_memory(outputs, inputs):
            return self._with_copies(self.reduce_scatter_single_coalesced, outputs, inputs, part)
        works = [self.reduce_scatter_single(o, i, part) for o, i in zip(outputs, inputs)]
        return LockstepWorks(works, outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # --- movements ---

    @event("broadcast")
    def broadcast(self, tensors: Any, opts: Any = None, root: int = 0) -> Any:
        if opts is None:
            opts = dist.BroadcastOptions()
            opts.rootRank = root
        tensors = _list("broadcast", tensors)
        is_root = opts.rootRank == self._comm.rank
        chosen = opts.rootTensor if is_root else 0
        check(0 <= chosen < len(tensors), "root", chosen, len(tensors))
        tensor = tensors[chosen]
        _same_size("broadcast", tensors, tensor)
        dtype, width = moved(tensor.dtype)
        buffer, finish = _target(tensor, copy=is_root)
        finish = _copied_to_others(tensors, tensor, None if is_root else finish)
        out = ctypes.c_void_p()
        status = lib.ls_broadcast(
            self._handle(tensor.shape),
            buffer.data_ptr(),
            buffer.data_ptr(),
            buffer.numel() * width,
            dtype,
            opts.rootRank,
            self._out(out, opts),
        )
        return self._work(status, out, opts, buffer, tensors, finish)

    @event("_all_gather_base", 1)
    def all_gather_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: Any = None
    ) -> Any:
        self._check_whole("all_gather", output, source)
        dtype, width = moved(source.dtype)
        src = _source(source)
        dst, finish = _target(output)
        out = ctypes.c_void_p()
        status = lib.ls_all_gather(
            self._handle(source.shape),
            src.data_ptr(),
            dst.data_ptr(),
            src.numel() * width,
            dtype,
            self._out(out, opts),
        )
        return self._work(status, out, opts, (src, dst), [output], finish)

    _allgather_base = all_gather_single

    @event("all_gather_into_tensor_coalesced", 1)
    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Any:
        part = PartOptions(opts)
        _same_length("all_gather_into_tensor_coalesced", outputs, inputs)
        if _pairs_share_memory(outputs, inputs):
            return self._with_copies(self.all_gather_single_coalesced, outputs, inputs, part)
        works = [self.all_gather_single(o, i, part) for o, i in zip(outputs, inputs)]
        return LockstepWorks(works, outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @event("all_gather", 1)
    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        inputs = _list("all_gather", inputs)
        _same_length("all_gather", outputs, inputs)
        if len(inputs) > 1:
            return self._gather_of_several(outputs, inputs, opts)
        parts, source = outputs[0], inputs[0]
        self._check_list("all_gather", parts, source)
        dtype, width = moved(source.dtype)
        src = _source(source)
        out = ctypes.c_void_p()
        if all(part.numel() == source.numel() for part in parts):
            dst, finish = _targets(parts, self._apart(parts, source))
            status = lib.ls_all_gather_list(
                self._handle(source.shape),
                src.data_ptr(),
                _addresses(dst),
                src.numel() * width,
                dtype,
                self._out(out, opts),
            )
            return self._work(status, out, opts, (src, dst), parts, finish)
        _same_size("all_gather", [parts[self._comm.rank]], source)
        flat, finish = _divided(parts)
        status = lib.ls_all_gather_v(
            self._handle(source.shape),
            src.data_ptr(),
            flat.data_ptr(),
            _counts([part.numel() * width for part in parts]),
            dtype,
            self._out(out, opts),
        )
        return self._work(status, out, opts, (src, flat), parts, finish)

    def _gather_of_several(self, outputs: Any, inputs: Tensors, opts: Any) -> LockstepWork:
        """Each list in `outputs` gets all tensors of rank 0, then those of rank 1, and so on."""
        _same_size("all_gather", inputs, inputs[0])
        source = torch.stack(list(inputs))
        of_ranks = [torch.empty_like(source) for _ in range(self._comm.size)]
        results = [result for of_rank in of_ranks for result in of_rank]
        for targets in outputs:
            is_right = len(targets) == len(results)
            check(is_right, "list", "all_gather", len(targets), self._comm.size)
            _same_size("all_gather", targets, inputs[0])
        self.allgather([of_ranks], [source], PartOptions(opts)).wait()
        for targets in outputs:
            for target, result in zip(targets, results):
                write(target, result)
        return keep_until_waited(LockstepWork(self._comm, None, None, outputs))

    @event("all_gather", 1)
    def allgather_coalesced(self, outputs: Any, inputs: Tensors, opts: Any = None) -> Any:
        """outputs[r][i] = inputs[i] of rank r."""
        part = PartOptions(opts)
        for of_rank in outputs:
            _same_length("all_gather_coalesced", of_rank, inputs)
        targets = [tensor for of_rank in outputs for tensor in of_rank]
        if _share_memory([*targets, *inputs]):
            results = [[torch.empty_like(tensor) for tensor in of_rank] for of_rank in outputs]
            work = self.allgather_coalesced(results, [tensor.clone() for tensor in inputs], part)
            return self._copied(work, targets, [t for of_rank in results for t in of_rank])
        works = [
            self.allgather([[of_rank[i] for of_rank in outputs]], [source], part)
            for i, source in enumerate(inputs)
        ]
        return LockstepWorks(works, targets)

    @event("gather", 1)
    def gather(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        source = _one(inputs)
        parts: Tensors = []
        if opts.rootRank == self._comm.rank:
            parts = _one_list(outputs)
            self._check_list("gather", parts, source)
            _same_size("gather", parts, source)
        dtype, width = moved(source.dtype)
        src = _source(source)
        dst, finish = _targets(parts, self._apart(parts, source))
        out = ctypes.c_void_p()
        status = lib.ls_gather_list(
            self._handle(source.shape),
            src.data_ptr(),
            _addresses(dst) if dst else None,
            src.numel() * width,
            dtype,
            opts.rootRank,
            self._out(out, opts),
        )
        return self._work(status, out, opts, (src, dst), parts, finish)

    def gather_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any) -> Any:
        dtype, width = moved(source.dtype)
        src = _source(source)
        is_root = opts.rootRank == self._comm.rank
        if is_root:
            self._check_whole("gather", output, source)
        dst, finish = _target(output) if is_root else (None, None)
        out = ctypes.c_void_p()
        status = lib.ls_gather(
            self._handle(source.shape),
            src.data_ptr(),
            dst.data_ptr() if dst is not None else None,
            src.numel() * width,
            dtype,
            opts.rootRank,
            self._out(out, opts),
        )
        return self._work(status, out, opts, (src, dst), [output] if is_root else [], finish)

    gather_into_tensor = gather_single

    @event("scatter")
    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        target = _one(outputs)
        parts: Tensors = []
        if opts.rootRank == self._comm.rank:
            parts = _one_list(inputs)
            self._check_list("scatter", parts, target)
            _same_size("scatter", parts, target)
        dtype, width = moved(target.dtype)
        sources = [_source(part) for part in parts]
        dst, finish = _target(target)
        out = ctypes.c_void_p()
        status = lib.ls_scatter_list(
            self._handle(target.shape),
            _addresses(sources) if sources else None,
            dst.data_ptr(),
            dst.numel() * width,
            dtype,
            opts.rootRank,
            self._out(out, opts),
        )
        return self._work(status, out, opts, (sources, dst), [target], finish)

    @event("all_to_all", 1)
    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        self._check_list("all_to_all", inputs)
        self._check_list("all_to_all", outputs, inputs[0])
        dtype, width = moved(inputs[0].dtype)
        src_sizes = [tensor.numel() for tensor in inputs]
        dst_sizes = [tensor.numel() for tensor in outputs]
        self._check_own_part(src_sizes, dst_sizes)
        sources = [_source(tensor) for tensor in inputs]
        targets, finish = _targets(outputs, inputs)
        out = ctypes.c_void_p()
        status = lib.ls_all_to_all_list(
            self._handle(inputs[0].shape),
            _addresses(sources),
            _counts([size * width for size in src_sizes]),
            _addresses(targets),
            _counts([size * width for size in dst_sizes]),
            dtype,
            self._out(out, opts),
        )
        return self._work(status, out, opts, (sources, targets), outputs, finish)

    @event("all_to_all", 1)
    def all_to_all_single(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_sizes: Optional[Sequence[int]],
        input_sizes: Optional[Sequence[int]],
        opts: Any = None,
    ) -> Any:
        _same_type("all_to_all", [output, source])
        src = _source(source)
        dst, finish = _target(output)
        src_sizes = self._split_sizes(source, input_sizes)
        dst_sizes = self._split_sizes(output, output_sizes)
        self._check_own_part(src_sizes, dst_sizes)
        dtype, width = moved(src.dtype)
        out = ctypes.c_void_p()
        status = lib.ls_all_to_all_v(
            self._handle(src.shape),
            src.data_ptr(),
            _counts([size * width for size in src_sizes]),
            dst.data_ptr(),
            _counts([size * width for size in dst_sizes]),
            dtype,
            self._out(out, opts),
        )
        return self._work(status, out, opts, (src, dst), [output], finish)

    alltoall_base = all_to_all_single

    def _split_sizes(self, tensor: torch.Tensor, rows: Optional[Sequence[int]]) -> List[int]:
        """Elements for each rank, from rows of the first dimension."""
        n = self._comm.size
        height = tensor.shape[0] if tensor.dim() > 0 else 1
        if not rows:
            check(height % n == 0, "rows", height, n)
            return [tensor.numel() // n] * n
        fits = len(rows) == n and sum(rows) == height and min(rows) >= 0
        check(fits, "splits", list(rows), n, height)
        width = tensor.numel() // height if height > 0 else 0
        return [row * width for row in rows]

    def _check_own_part(self, sent: Sequence[int], received: Sequence[int]) -> None:
        """What this rank sends to itself in all_to_all; other parts are compared on the way."""
        mine = self._comm.rank
        check(sent[mine] == received[mine], "sizes", "all_to_all", sent[mine], received[mine])

    def _apart(self, parts: Tensors, source: torch.Tensor) -> Tensors:
        """The source, unless it is this rank's part itself."""
        is_in_place = parts and parts[self._comm.rank].data_ptr() == source.data_ptr()
        return () if is_in_place else (source,)

    def _check_list(self, what: str, parts: Tensors, *others: torch.Tensor) -> None:
        n = self._comm.size
        check(len(parts) == n, "list", what, len(parts), n)
        _same_type(what, [*others, *parts])

    def _check_whole(self, what: str, whole: torch.Tensor, part: torch.Tensor) -> None:
        """`whole` has the elements of each rank's `part`."""
        n = self._comm.size
        _same_type(what, [whole, part])
        is_right = whole.numel() == part.numel() * n
        check(is_right, "whole", what, whole.numel(), part.numel(), n)

    # --- messages ---

    @event("send")
    def send(self, tensors: Any, peer: int, tag: int) -> Any:
        src = _source(_one(tensors))
        dtype, width = moved(src.dtype)
        out = ctypes.c_void_p()
        status = lib.ls_send(
            self._handle(src.shape),
            src.data_ptr(),
            src.numel() * width,
            dtype,
            peer,
            tag,
            ctypes.byref(out),
        )
        return self._work(status, out, None, src, [])

    @event("recv")
    def recv(self, tensors: Any, peer: int, tag: int) -> Any:
        tensor = _one(tensors)
        dst, finish = _target(tensor)
        dtype, width = moved(dst.dtype)
        out = ctypes.c_void_p()
        status = lib.ls_recv(
            self._handle(tensor.shape),
            dst.data_ptr(),
            dst.numel() * width,
            dtype,
            peer,
            tag,
            ctypes.byref(out),
        )
        return self._work(status, out, None, dst, [tensor], finish)

    @event("recvAnySource")
    def recv_anysource(self, tensors: Any, tag: int) -> Any:
        return self.recv(tensors, _lib.ANY_SOURCE, tag)

    # --- barriers, sub-groups ---

    @event("barrier")
    def barrier(self, opts: Any = None) -> Any:
        out = ctypes.c_void_p()
        status = lib.ls_barrier(self._handle(), self._out(out, opts))
        return self._work(status, out, opts, None, [])

    def monitored_barrier(
        self, timeout: Optional[timedelta] = None, wait_all_ranks: bool = False
    ) -> None:
        limit = self.options._timeout if timeout is None else timeout
        self._monitored.wait(limit, wait_all_ranks)

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: Optional[timedelta] = None,
        opts: Any = None,
        group_name: Optional[str] = None,
        group_desc: Optional[str] = None,
        device_types: Any = None,
    ) -> Optional["LockstepGroup"]:
        """The group of the ranks in `ranks` of this group; None on other ranks."""
        limit = timeout or self.options._timeout
        name = group_name or f"split of {self._set_name}: {list(ranks)}"
        comm = _join.create_group(ranks, name, milliseconds(limit), self._comm)
        if comm is None:
            return None
        store = dist.PrefixStore(f"{group_name}/", self._store)
        group = LockstepGroup(comm, store, limit, self._name)
        group.setGroupName(group_name or "")
        group.setGroupDesc(group_desc or "")
        return group


for _kind in (LockstepGroup, LockstepWork, LockstepWorks):
    _dynamo.not_traced(_kind)


def _operation(opts: Any) -> Any:
    if opts is None:
        return dist.ReduceOp.SUM
    return getattr(opts, "reduceOp", opts)


def _prepared(plan: Any, tensor: torch.Tensor) -> torch.Tensor:
    """What a reduction in another type, or of scaled values, reads."""
    src = _source(tensor)
    if plan.widened is not None:
        src = src.to(plan.widened)
    return src if plan.factor is None else src * plan.factor


def _finisher(
    plan: Any, target: torch.Tensor, result: torch.Tensor, size: int
) -> Callable[[], None]:
    def finish() -> None:
        divided = result.div(size, rounding_mode="trunc") if plan.is_divided else result
        write(target, divided)

    return finish


def _converted(
    plan: Any, tensor: torch.Tensor, size: int
) -> Tuple[torch.Tensor, torch.Tensor, Finish]:
    """What a reduction that is not direct reads and writes, in a group of `size` ranks."""
    src = _prepared(plan, tensor)
    return src, src, _finisher(plan, tensor, src, size)
