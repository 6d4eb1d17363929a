# SPDX-License-Identifier: Apache-2.0
"""The group of all ranks of an elastic job, and operations that are repeated after a loss.

All ranks with the state of the training perform the same numbered operations. When one fails
because a rank is lost, the group is formed again, and the ranks compare how many they have
completed. A result that one rank has counts: ranks that lack it get it from there. An operation
that no rank has completed is performed again. So no operation of the program fails.

Processes that have come are in the group as well. Until the state is sent to them (admit()), the
others work in a sub-group.
"""
from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, Callable, Dict, List, Optional, Sequence, Union

import torch
import torch.distributed as dist

from . import _elastic_state, _join, _lib, _site
from ._elastic_plane import LockstepPlane, TorchPlane, open_plane, wait
from ._lib import lib
from ._pg import LockstepGroup
from ._work import LockstepWork, keep_until_waited, write

Tensors = Sequence[torch.Tensor]
_RECOVERABLE = (_lib.EPEER, _lib.ETIMEOUT, _lib.EDEADLINE, _lib.ECANCELED)


def is_elastic() -> bool:
    """Whether `lockstep run --elastic` has started this process."""
    return "LOCKSTEP_ELASTIC" in os.environ


def _gather_numbers(comm: _join.Comm, numbers: Sequence[int]) -> List[List[int]]:
    """The numbers of each rank."""
    own = torch.tensor(numbers, dtype=torch.int64)
    every = torch.empty((comm.size, len(numbers)), dtype=torch.int64)
    addresses = own.data_ptr(), every.data_ptr(), len(numbers), _lib.I64
    wait(comm, lambda out: lib.ls_all_gather(comm.handle, *addresses, out), (own, every))
    rows: List[List[int]] = every.tolist()
    return rows


def _broadcast_tree(comm: _join.Comm, tree: Any, root: int) -> Any:
    """The root's tree on all ranks (_elastic_state)."""
    plane, is_root = LockstepPlane(comm), comm.rank == root
    text, tensors = _elastic_state.pack(tree) if is_root else (b"", [])
    size = torch.tensor([len(text)])
    plane.broadcast(size, root)
    data = torch.tensor(list(text), dtype=torch.uint8) if is_root else None
    if data is None:
        data = torch.empty(int(size), dtype=torch.uint8)
    plane.broadcast(data, root)
    arrival = None if is_root else _elastic_state.Arrival(bytes(data.tolist()))
    for tensor in tensors if arrival is None else arrival.tensors:
        if tensor.numel() > 0:
            plane.broadcast(tensor, root)
    return tree if arrival is None else arrival.tree()


class OtherJob:
    """The ranks of a job that is not elastic: the default group, or this process alone."""

    is_new, has_state = False, True
    joining: Sequence[int] = ()
    n_regroups = n_boundaries = 0

    def __init__(self) -> None:
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.size = dist.get_world_size() if dist.is_initialized() else 1
        self.member = self.rank
        self.members = list(range(self.size))
        self.requests: List[int] = []
        self.on_regroup: List[Callable[[], None]] = []
        self.backends: Dict[str, str] = {}

    def begin(self) -> None:
        pass

    def check_seat(self) -> None:
        pass

    def is_called(self) -> bool:
        return False

    def perform(self, start: Callable[[], None], _results: Any, **_named: Any) -> bool:
        start()
        return True

    def admit(self, _state: Callable[[], Any]) -> None:
        pass

    def plane(self, _device: torch.device) -> TorchPlane:
        return TorchPlane()

    def members_into(self, target: torch.Tensor) -> None:
        target[: self.size + 1] = torch.tensor([self.size, *self.members])

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()


# --- the job ---


class Job:
    """The ranks of an elastic job. `active` is the group of those that have the state, `world` that
    of all; they are the same unless processes have just come."""

    def __init__(self, timeout_ms: int) -> None:
        self.world = _join.join_launched(timeout_ms)
        self.active = self.world
        self.member = int(os.environ["LOCKSTEP_MEMBER"])
        self.is_new = os.environ.get("LOCKSTEP_NEW_MEMBER") == "1"
        self.has_state = False
        # Of each rank of `active`. The first ones have the numbers of their ranks.
        self.members = [self.member] if self.is_new else list(range(self.world.size))
        self.joining: List[int] = []  # ranks in `world`
        self.done = 0  # completed operations
        self.n_boundaries = 0  # that this rank has passed: counted by the owner of the job
        # The ranks divide the samples anew at a boundary after each of these.
        self.requests: List[int] = []
        self.n_regroups = 0  # how often the group has been formed again
        self.on_regroup: List[Callable[[], None]] = []
        self.backends: Dict[str, str] = {}  # by type of device: that move data in place of Lockstep
        self._planes: Dict[str, TorchPlane] = {}  # of `active`
        self._results: Dict[int, List[torch.Tensor]] = {}  # of operations that others may lack
        self._given: Dict[int, List[torch.Tensor]] = {}  # by ranks that were ahead

    @property
    def rank(self) -> int:
        return self.active.rank

    @property
    def size(self) -> int:
        return self.active.size

    def begin(self) -> None:
        """This process has the state, and its operations count from here on."""
        self.has_state = True
        _lib.check(lib.ls_comm_report_state(self.world.handle))

    def check_seat(self) -> None:
        _lib.check(lib.ls_comm_check_seat(self.world.handle))

    def is_called(self) -> bool:
        """Whether processes wait; known to rank 0."""
        is_asked = self.active is self.world and self.world.rank == 0
        return is_asked and bool(lib.ls_comm_is_called(self.world.handle))

    # --- operations ---

    def perform(
        self,
        start: Callable[[], None],
        results: Callable[[], Tensors],
        *,
        ends_together: bool,
        keeps_copies: bool = False,
        again: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Performs the next operation. start() blocks; results() are the tensors that it writes,
        the same on all ranks, and keep their values until the next operation that ends together, or
        are copied. ends_together: it completes on a rank only after all ranks have started it.
        again() prepares it after a loss; False: it is not performed now, and gives False."""
        while self.done not in self._given:
            try:
                start()
                break
            except _lib.BackendError:
                if not self._has_lost_ranks():
                    raise
            self.regroup()
            if self.done not in self._given and not again():
                return False
        else:
            for target, value in zip(results(), self._given.pop(self.done)):
                write(target, value)
        if ends_together:
            self._results.clear()
        kept = [t.clone() if keeps_copies else t for t in results()]
        self._results[self.done] = kept
        self.done += 1
        return True

    def _has_lost_ranks(self) -> bool:
        handles = (comm.handle for comm in (self.active, self.world))
        return self.has_state and any(lib.ls_comm_status(h) in _RECOVERABLE for h in handles if h)

    # --- what start() of perform() may call ---

    def plane(self, device: torch.device) -> Union[LockstepPlane, TorchPlane]:
        """What moves the data of tensors of this device."""
        backend = self.backends.get(device.type) or _backend_of(device.type)
        if backend is None:
            return LockstepPlane(self.active)
        if device.type not in self._planes:
            self._planes[device.type] = open_plane(backend, self.active, self.world, device)
        return self._planes[device.type]

    def members_into(self, target: torch.Tensor) -> None:
        """How many ranks there are, and the number of each."""
        rows = _gather_numbers(self.active, [self.member])
        target[: self.size + 1] = torch.tensor([self.size, *(row[0] for row in rows)])

    def barrier(self) -> None:
        comm = self.active
        wait(comm, lambda out: lib.ls_barrier(comm.handle, out), None)

    # --- the group ---

    def regroup(self) -> None:
        """Forms the group of all living processes. Blocks until all of them have come."""
        while True:
            self._leave_active()
            handle = self.world.handle
            _lib.check(lib.ls_comm_rejoin(handle, int(self.has_state)))
            self.world.rank, self.world.size = lib.ls_comm_rank(handle), lib.ls_comm_size(handle)
            try:
                _site.show_stack_when_late(handle)
                self._compare()
                break
            except _lib.BackendError:
                if lib.ls_comm_status(handle) not in _RECOVERABLE:
                    raise
        self.n_regroups += 1
        for notify in self.on_regroup:
            notify()

    def _leave_active(self) -> None:
        while self._planes:
            self._planes.popitem()[1].close()
        if self.active is not self.world:
            self.active.close()
            self.active = self.world

    def _compare(self) -> None:
        own = [int(self.has_state), self.done, self.n_boundaries, self.member]
        every = _gather_numbers(self.world, own)
        living = [rank for rank, row in enumerate(every) if row[0]]
        self.joining = [rank for rank, row in enumerate(every) if not row[0]]
        self._living = living
        self.requests.append(max(every[rank][2] for rank in living))
        self._every_member = [row[3] for row in every]
        if not self.has_state:
            return
        if self.joining:
            self.active = self._sub_group(living, "those with state")
        self.members = [every[rank][3] for rank in living]
        counts = [every[rank][1] for rank in living]
        if min(counts) < max(counts):
            source = counts.index(max(counts))
            missing = {n: t for n, t in self._results.items() if n >= min(counts)}
            given = _broadcast_tree(self.active, missing, source)
            self._given = {n: tensors for n, tensors in given.items() if n >= self.done}
        else:
            self._given = {}

    def _sub_group(self, ranks: Sequence[int], name: str) -> _join.Comm:
        comm = _join.create_group(ranks, f"elastic: {name}", 0, self.world)
        assert comm is not None
        return comm

    # --- processes that come ---

    def admit(self, state: Callable[[], Any]) -> None:
        """Sends state() to the processes that have come, which receive() it. All ranks with the
        state call it between two operations."""
        while self.joining:
            try:
                if self.active.rank == 0:
                    group = self._transfer_group()
                    _broadcast_tree(group, state(), 0)
                    group.close()
                self._go_on_together()
            except _lib.BackendError:
                if not self._has_lost_ranks():
                    raise
                self.regroup()

    def receive(self) -> Any:
        """Joins the others at the end of one of their steps, and gets their state."""
        while True:
            self.regroup()
            try:
                group = self._transfer_group()
                tree = _broadcast_tree(group, None, 0)
                group.close()
                self.is_new = False
                return tree
            except _lib.BackendError:
                if lib.ls_comm_status(self.world.handle) not in _RECOVERABLE:
                    raise

    def _go_on_together(self) -> None:
        self.joining = []
        self.members = self._every_member
        self._leave_active()

    def _transfer_group(self) -> _join.Comm:
        return self._sub_group([self._living[0], *self.joining], "transfer")

    def place(self) -> List[Any]:
        """What take_place() of a new process needs."""
        return [self.done, self.n_boundaries, self.requests]

    def take_place(self, place: List[Any]) -> None:
        """A new process goes on like the one whose state it has."""
        self.done, self.n_boundaries, self.requests = place
        self._go_on_together()
        self.begin()


def _backend_of(device_type: str) -> Optional[str]:
    """That of the default group, which may be "cpu:lockstep,cuda:nccl", for other devices."""
    if device_type == "cpu":
        return None
    parts = [part.split(":") for part in str(dist.get_backend_config()).split(",")]
    return {part[0]: part[-1] for part in parts}.get(device_type)


class ElasticGroup(LockstepGroup):
    """The default group of an elastic job. all_reduce, broadcast, all_gather and barrier are
    repeated after a loss; other collectives fail, as without recovery. Each call blocks."""

    def __init__(self, job: Job, store: Any, timeout: timedelta, name: str = "lockstep") -> None:
        self.job = job
        super().__init__(job.world, store, timeout, name)

    @property
    def _comm(self) -> _join.Comm:
        return self.job.active

    @_comm.setter
    def _comm(self, _value: _join.Comm) -> None:
        pass

    def shutdown(self) -> None:
        self.job.active.close()
        self.job.world.close()

    def _work(self, *arguments: Any, **named: Any) -> Any:
        work = super()._work(*arguments, **named)
        if work is None:
            return None
        work.wait()  # no handle is left when the group is formed again
        return keep_until_waited(work)

    def _call(self, name: str, *arguments: Any) -> Any:
        """The collective for the tensors that end the arguments."""
        tensor = arguments[-2][0]
        plane = self.job.plane(tensor.device)
        if plane.group is None:
            return getattr(LockstepGroup, name)(self, *arguments)
        work = getattr(plane.group, name)(*arguments)
        plane.wait(work)
        return work

    def _repeated(
        self, call: Callable[[], Any], targets: Tensors, *, is_read: bool, ends_together: bool
    ) -> Any:
        """The work of the call, which writes `targets`. is_read: it also reads them."""
        if not self.job.has_state:
            return call()
        before = [target.clone() for target in targets] if is_read else []
        works: List[Any] = []

        def restore() -> bool:
            for target, value in zip(targets, before):
                write(target, value)
            return True

        self.job.perform(
            lambda: works.append(call()),
            lambda: targets,
            ends_together=ends_together,
            keeps_copies=True,
            again=restore,
        )
        return works[-1] if works else keep_until_waited(
            LockstepWork(self._comm, None, None, targets)
        )

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        targets = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        opts = opts or dist.AllreduceOptions()
        return self._repeated(
            lambda: self._call("allreduce", targets, opts),
            targets,
            is_read=True,
            ends_together=True,
        )

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Any:
        works = [self.allreduce([tensor], opts) for tensor in tensors]
        return works[-1]

    def broadcast(self, tensors: Any, opts: Any) -> Any:
        targets = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        return self._repeated(
            lambda: self._call("broadcast", targets, opts),
            targets,
            is_read=False,
            ends_together=False,
        )

    def _gather_into(self, parts: Tensors, source: torch.Tensor, opts: Any) -> Any:
        """Of a list for another number of ranks, which the program has noted, part i is that of
        rank i modulo the present number."""
        if len(parts) == self.size():
            return self._call("allgather", [list(parts)], [source], opts)
        found = [torch.empty_like(source) for _ in range(self.size())]
        work = self._call("allgather", [found], [source], opts)
        for i, part in enumerate(parts):
            write(part, found[i % len(found)])
        return work

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        source = inputs if isinstance(inputs, torch.Tensor) else inputs[0]
        opts = opts or dist.AllgatherOptions()
        return self._repeated(
            lambda: self._gather_into(outputs[0], source, opts),
            outputs[0],
            is_read=False,
            ends_together=True,
        )

    def all_gather_single(self, output: torch.Tensor, source: Any, opts: Any = None) -> Any:
        flat = source.reshape(-1)
        parts = list(output.view(-1).split(max(1, flat.numel())))
        opts = dist.AllgatherOptions()
        return self._repeated(
            lambda: self._gather_into(parts, flat, opts),
            [output],
            is_read=False,
            ends_together=True,
        )

    _allgather_base = all_gather_single

    def barrier(self, opts: Any = None) -> Any:
        call = super().barrier
        return self._repeated(lambda: call(opts), [], is_read=False, ends_together=True)

    def send(self, *_arguments: Any) -> Any:
        raise NotImplementedError(
            "lockstep.torch.elastic: send and recv cannot be repeated after the loss of a rank"
        )

    recv = recv_anysource = send
