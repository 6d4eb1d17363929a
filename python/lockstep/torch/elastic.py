# SPDX-License-Identifier: Apache-2.0
"""Training that goes on when ranks are lost, under `lockstep run --elastic`.

    dist.init_process_group("lockstep")
    ...
    run = lockstep.torch.elastic.Run(model, optimizer, scheduler)  # behind DDP(model)
    for epoch in run.epochs(10):                                   # was: range(10)
        for x, y in run.steps(loader):                             # was: loader
            ...                                                    # unchanged

In any other job the loop does the same, on the default group or one process, without recovery.

Loss      When a rank is lost, the others keep their process and all that is in it. The call that
          fails does not return before the group has been formed again. A gradient that one rank has
          got counts: ranks that lack it get it from there; otherwise the gradients that the ranks
          have are reduced again. So the body of the loop runs once for each batch, and no call in
          it fails.
New ranks A process in the place of a lost one runs the program from its beginning, in a group of
          itself alone: rank 0 of 1. In epochs(), or in steps() where there is none, it waits until
          the others are at the end of a step, and gets the model with its buffers, the state of
          optimizers and `others`, `state`, the random numbers of rank 0, the epoch and the position
          in it. So what is collective belongs before Run() or into the loops, not between epochs()
          and steps(). Ranks are numbered by age: use torch.distributed.get_rank(), not RANK.
Gradients are the mean over the samples of all ranks, reduced at the end of backward() into .grad,
          as DistributedDataParallel does. A model in DistributedDataParallel uses this reduction in
          place of its own; its no_sync() and require_backward_grad_sync have the usual meaning. For
          other models there is Run.no_sync(). Buffers are those of rank 0 after each reduction.
Samples   steps() reads the DataLoader's data set in the order of its sampler, with its batch size
          on each rank, and its workers. Each sample of an epoch is used once: the last step is
          divided among the ranks, without repetition, and the samples that a lost rank had not
          completed are divided among the others. A rank that has no sample left in a step gets
          samples that do not count.
shards=V  The batch of a step is V batches (shards), whatever the number of ranks. A rank runs the
          body once for each of its shards; the optimizer, and schedulers in `others`, make a step
          behind the last one only. Random numbers in the body depend on (seed, epoch, step, shard),
          those of data sets on (seed, epoch, sample). The end has the same bits on 1 to V ranks,
          with losses or without. The body then calls backward() once, and no collectives.
Calls of torch.distributed in the program: all_reduce, broadcast, all_gather and barrier of the
          default group are repeated after a loss like the gradients, and block. Others fail.
          Sub-groups do not survive.
Refused   fully_shard (FSDP2) and FullyShardedDataParallel: each rank has a part of the state that
          no other rank has. Hooks of DistributedDataParallel. Complex parameters.
"""
from __future__ import annotations

import contextlib
import functools
import os
import sys
import weakref
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Union

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from . import _elastic_data, _elastic_job, _elastic_state, _elastic_sum
from ._elastic_data import Feed, Partition, Token

__all__ = ["Run"]

_NAME = "lockstep.torch.elastic"
_GATED = ("step", "update", "update_parameters")  # schedulers, GradScaler, AveragedModel


def is_new() -> bool:
    """Whether this process waits for the state of the others."""
    return bool(_job().is_new)


def _job() -> Any:
    group = dist.distributed_c10d._get_default_group() if dist.is_initialized() else None
    if isinstance(group, _elastic_job.ElasticGroup):
        return group.job
    return _elastic_job.OtherJob()


def _check_model(module: torch.nn.Module) -> None:
    for part in module.modules():
        if any(kind.__name__ == "FullyShardedDataParallel" for kind in type(part).__mro__):
            raise TypeError(
                f"{_NAME}: FullyShardedDataParallel: a lost rank takes its part of the state along"
            )
    for name, p in module.named_parameters():
        if p.is_complex():
            raise TypeError(f"{_NAME}: parameter {name} is complex: gradients are reduced as real")
        if type(p.data).__name__ == "DTensor":
            raise TypeError(
                f"{_NAME}: parameter {name} is a DTensor (fully_shard, tensor parallel): a lost "
                "rank takes its part of the state along"
            )


def _note_size(job: Any) -> None:
    """accelerate notes rank and size when it starts, where a new process is alone."""
    module = sys.modules.get("accelerate.state")
    for kind in ("PartialState", "AcceleratorState"):
        noted = getattr(getattr(module, kind, None), "_shared_state", None)
        if noted:
            noted.update(num_processes=job.size, process_index=job.rank)
            if os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE"):
                noted.update(local_process_index=job.rank)  # that prints


class Run:
    """A training; see the text of the module.

    model: one, or several in a list. optimizer: likewise. others: what else has state_dict() and
    load_state_dict(), such as schedulers and a GradScaler. state: a dict of the program, whose
    content a new process gets. seed: of the order of samples where the sampler has none, and of
    `shards`. data_plane: the backend of torch that moves gradients and buffers in place of Lockstep
    in an elastic job; for "cpu:lockstep,cuda:nccl" that of the parameters' device.
    """

    def __init__(
        self,
        model: Union[torch.nn.Module, Sequence[torch.nn.Module]],
        optimizer: Any,
        *others: Any,
        shards: Optional[int] = None,
        seed: int = 0,
        state: Optional[Dict[str, Any]] = None,
        data_plane: Optional[str] = None,
    ) -> None:
        if shards is not None and shards < 1:
            raise ValueError(f"{_NAME}: shards={shards}")
        self._job = _job()
        self.shards, self.seed = shards, seed
        self.state = {} if state is None else state
        self.step = 0  # completed reductions
        self._optimizers = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
        self._others = others
        models = list(model) if isinstance(model, (list, tuple)) else [model]
        self._open_models([getattr(m, "_orig_mod", m) for m in models])
        for tool in self._optimizers:
            self._gate_optimizer(tool)
        if shards is not None:
            for tool in others:
                self._gate(tool)
        # Samples: see _elastic_data.
        self._epoch = 0
        self._is_in_epochs = False
        self._partition: Optional[Partition] = None
        self._partition_epoch = -1
        self._members: List[int] = []  # that the units are divided among
        self._at = -1  # step of the partition
        self._pending: List[int] = []  # units of that step that this rank has yet to run
        self._computed: Set[int] = set()  # and has run
        self._open_steps: List[int] = []  # since the last reduction
        self._returned: List[torch.Tensor] = []  # samples of lost ranks
        self._feed: Optional[Feed] = None
        # The step.
        self._unit = -1
        self._rows = 0
        self._open_rows = 0  # samples in bodies since the last reduction
        self._is_in_body = self._is_reduced = self._has_stepped = self._is_called = False
        self._is_synced = True
        self._touched: Set[int] = set()
        self._queued: Any = None  # refers to a callback, which is freed when its backward() fails
        self._open_gradients(shards or self._job.size)
        if data_plane is not None:
            self._job.backends[self._gradients.device.type] = data_plane
        self._job.on_regroup.append(self._on_regroup)
        if not self._job.is_new:
            self._share_model()
            self._job.begin()

    # --- the model ---

    def _open_models(self, models: Sequence[torch.nn.Module]) -> None:
        self._modules = []
        broadcasts = True
        for model in models:
            _check_model(model)
            if isinstance(model, DistributedDataParallel):
                broadcasts = broadcasts and model.broadcast_buffers
                self._take_over(model)
                model = model.module
            self._modules.append(model)
        named = [item for m in self._modules for item in m.named_parameters()]
        self._names = [name for name, _ in named]
        self._all = [p.data for _, p in named]
        self._parameters = [p for _, p in named if p.requires_grad]
        self._buffers = [b for m in self._modules for b in m.buffers()]
        self._synced_buffers = self._buffers if broadcasts else []
        self._accumulators = []  # of the parameters' gradients; autograd does not keep them
        for index, p in enumerate(self._parameters):
            p.register_hook(self._counted)
            self._accumulators.append(p.expand_as(p).grad_fn.next_functions[0][0])
            self._accumulators[-1].register_hook(functools.partial(self._on_gradient, index))

    def _take_over(self, ddp: Any) -> None:
        """Its forward calls the module, so that its own reduction never begins."""
        if getattr(ddp, "_comm_hooks", None):
            raise ValueError(f"{_NAME}: the hooks of DistributedDataParallel are not called")
        run = self

        class Elastic(type(ddp)):  # type: ignore[misc]
            def forward(self, *arguments: Any, **named: Any) -> Any:
                run._is_synced = self.require_backward_grad_sync
                return self.module(*arguments, **named)

        Elastic.__name__ = Elastic.__qualname__ = type(ddp).__name__
        ddp.__class__ = Elastic

    def _share_model(self) -> None:
        """Rank 0's values count, as in DistributedDataParallel."""
        for tensor in [*self._all, *self._buffers]:
            dense = tensor.detach().contiguous()
            self._job.plane(dense.device).broadcast(dense, 0)
            if dense.data_ptr() != tensor.data_ptr():
                tensor.copy_(dense)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of a backward() in it are added up and reduced by the next one outside of it.
        For models without DistributedDataParallel."""
        before, self._is_synced = self._is_synced, False
        try:
            yield
        finally:
            self._is_synced = before

    # --- optimizers and others ---

    def _gate_optimizer(self, optimizer: Any) -> None:
        inner = optimizer.step

        @functools.wraps(inner)
        def step(*arguments: Any, **named: Any) -> Any:
            closure = named.pop("closure", arguments[0] if arguments else None)
            if self.shards is not None and closure is not None:
                losses = [closure()]
                if not self._is_reduced:
                    return losses[0]
                closure = functools.partial(self._only, losses)
            elif self.shards is not None and not self._is_reduced:
                return None
            elif isinstance(optimizer, torch.optim.LBFGS):
                closure = functools.partial(self._mean_of, closure)
            result = inner(closure) if closure is not None else inner(**named)
            self._has_stepped = True
            return result

        optimizer.step = step

    def _only(self, losses: List[Any]) -> Any:
        if not losses:
            raise RuntimeError(f"{_NAME}: with shards an optimizer calls its closure once")
        return losses.pop()

    def _mean_of(self, closure: Callable[[], Any]) -> torch.Tensor:
        """The loss of all ranks, from which LBFGS decides how often it calls the closure."""
        loss = float(torch.as_tensor(closure()).detach())
        own = torch.tensor([loss * self._rows, self._rows], dtype=torch.float64)
        total = torch.empty_like(own)
        self._job.perform(
            lambda: self._job.plane(own.device).sum_into(total, own),
            lambda: [total],
            ends_together=True,
        )
        return total[0] / total[1]

    def _gate(self, tool: Any) -> None:
        """With shards: its methods that end a step do nothing in all bodies but the last. A class,
        because the state of a scheduler is all that is in the object."""

        def gated(inner: Any) -> Any:
            @functools.wraps(inner)
            def call(own: Any, *arguments: Any, **named: Any) -> Any:
                if self._is_reduced or not self._is_in_body:
                    return inner(own, *arguments, **named)
                if hasattr(own, "_per_optimizer_states"):  # GradScaler: unscale_() again
                    own._per_optimizer_states.clear()
                return None

            return call

        kind = type(tool)
        methods = {n: gated(getattr(kind, n)) for n in _GATED if callable(getattr(kind, n, None))}
        tool.__class__ = type(kind.__name__, (kind,), methods)

    # --- epochs ---

    def epochs(self, n: int, first: int = 0) -> Iterator[int]:
        """The epochs from the present one to n - 1; from `first` in a program that continues a
        checkpoint. At the end it waits for all ranks."""
        self._is_in_epochs = True
        self._epoch = max(self._epoch, first)
        if self._job.is_new:
            self._receive()
        while self._epoch < n:
            yield self._epoch
            self._epoch += 1
        self.end()

    # For loops of others, in place of epochs():

    def steps_of_epoch(self, epoch: int, loader: Any) -> Iterator[Any]:
        """The rest of this epoch; of a new process, of that in which the others are."""
        self._is_in_epochs = True
        self._epoch = epoch
        return iter(self.steps(loader))

    def is_at_last_step(self) -> bool:
        """Whether the epoch has no step after the present one. Behind its backward() that is final:
        samples of a lost rank make one more."""
        partition = self._partition
        assert partition is not None
        return self._at >= partition.n_steps - 1 and not self._pending and not self._returned

    def on_new_ranks(self, notify: Callable[[], None]) -> None:
        """Has it called whenever the ranks have been numbered anew."""
        self._job.on_regroup.append(notify)

    def end(self) -> None:
        """The end of the last epoch: waits for all ranks."""
        self._is_in_epochs = False
        self._job.perform(self._job.barrier, lambda: (), ends_together=True)

    def steps(self, loader: Any) -> "_Steps":
        """The rest of the epoch: batches of the DataLoader. Without epochs() each call is one
        epoch. len() is the number of steps."""
        return _Steps(self, loader)

    def check_seat(self) -> None:
        """Before a rank writes a checkpoint: DistBackendError if the others have gone on without
        this process. Does nothing in a job that is not elastic."""
        self._job.check_seat()

    def _feed_of(self, loader: Any) -> Feed:
        if self._feed is None or self._feed.program_loader is not loader:
            self._feed = Feed(loader, self.shards is not None)
        return self._feed

    def _iterate(self, loader: Any) -> Iterator[Any]:
        feed = self._feed_of(loader)
        if self._job.is_new:
            self._receive()
        if self._partition_epoch != self._epoch:
            self._begin_epoch(feed)
        self._redirect()
        while True:
            token = self._next_unit()
            if token is None:
                break
            batch = feed.fetch(token)
            self._begin_body(token)
            try:
                yield batch
            finally:
                self._is_in_body = False
            self._end_body()
        feed.end_epoch()
        if self.shards is not None:
            _elastic_state.seed_all(_elastic_state.mix(self.seed, self._epoch, -1))
        if not self._is_in_epochs:
            self._epoch += 1
        self._job.perform(self._job.barrier, lambda: (), ends_together=True)

    def _agree_members(self) -> None:
        """The ranks that the units are divided among: an operation, so that all have the same."""
        most = max(self._job.size, int(os.environ.get("WORLD_SIZE", "1")))
        numbers = torch.zeros(most + 1, dtype=torch.int64)
        self._job.perform(
            lambda: self._job.members_into(numbers), lambda: [numbers], ends_together=True
        )
        n, *members = numbers.tolist()
        self._members = members[:n]
        _note_size(self._job)

    def _order(self, feed: Feed) -> torch.Tensor:
        known = feed.order(self.seed, self._epoch)
        if known is not None:
            return known
        order = feed.program_order(self._epoch)
        self._job.perform(
            lambda: self._job.plane(order.device).broadcast(order, 0),
            lambda: [order],
            ends_together=False,
        )
        return order

    def _begin_epoch(self, feed: Feed) -> None:
        self._agree_members()
        order = self._order(feed)
        n_units = self.shards or len(self._members)
        if feed.drop_last:
            order = order[: len(order) - len(order) % (n_units * feed.batch)]
        self._partition_epoch = self._epoch
        self._returned, self._open_steps = [], []
        self._divide(order, feed.batch)

    # --- units ---

    def _divide(self, order: torch.Tensor, batch: int) -> None:
        n_units = self.shards or len(self._members)
        self._partition = Partition(order, n_units, batch)
        self._at, self._pending = -1, []
        if n_units != self._gradients.n_units:
            self._open_gradients(n_units)

    def _owner(self, unit: int) -> int:
        """The rank that has this unit. Of a lost rank it has gone to the next living one."""
        members, living = self._members, self._job.members
        partition = self._partition
        assert partition is not None
        first = unit * len(members) // partition.n_units
        for i in range(len(members)):
            member = members[(first + i) % len(members)]
            if member in living:
                return int(living.index(member))
        raise RuntimeError(f"{_NAME}: no rank is left that has begun this step")

    def _units_of(self, rank: int) -> List[int]:
        assert self._partition is not None
        if self.shards is None:
            return [self._members.index(self._job.member)]
        return [u for u in range(self.shards) if self._owner(u) == rank]

    def _units_to_run(self, at: int) -> List[int]:
        """Those of this rank with samples; one in any case, so that the body runs."""
        partition = self._partition
        assert partition is not None
        own = self._units_of(self._job.rank)
        full = [unit for unit in own if len(partition.rows(at, unit)) > 0]
        return full or own[:1]

    def _upcoming(self, at: int, pending: List[int]) -> Iterator[Any]:
        """What this rank reads from now on: these units of step `at`, and those of later steps."""
        partition = self._partition
        assert partition is not None
        while True:
            for unit in pending:
                yield (at, unit), partition.indices(at, unit)
            at += 1
            if at >= partition.n_steps:
                return
            pending = self._units_to_run(at)

    def _redirect(self) -> None:
        if self._feed is not None:
            upcoming = self._upcoming(self._at, list(self._pending))
            self._feed.redirect(upcoming, _elastic_state.mix(self.seed, self._epoch))

    def _next_unit(self) -> Optional[Token]:
        partition = self._partition
        assert partition is not None
        if not self._pending:
            self._at += 1
            if self._at >= partition.n_steps:
                if not self._returned:
                    return None
                returned, self._returned = self._returned, []
                self._divide(torch.cat(returned), partition.batch)
                self._redirect()
                return self._next_unit()
            self._begin_step()
        return self._at, self._pending.pop(0)

    def _begin_step(self) -> None:
        self._pending = self._units_to_run(self._at)
        self._computed = set()
        self._nodes.clear()
        self._are_buffers_shared = False
        if self.shards is not None:
            self._first_buffers = [b.clone() for b in self._synced_buffers]

    def _begin_body(self, token: Token) -> None:
        at, self._unit = token
        assert self._partition is not None
        self._rows = len(self._partition.rows(at, self._unit))
        self._is_in_body = True
        self._is_reduced = self._has_stepped = False
        if self.shards is None:
            self._open_steps.append(at)
            return
        _elastic_state.seed_all(_elastic_state.mix(self.seed, self._epoch, at, self._unit))
        self._set_buffers(self._first_buffers)

    def _end_body(self) -> None:
        if self.shards is None or self._is_reduced:
            self._pass_boundary()
        elif not self._pending:
            raise RuntimeError(
                f"{_NAME}: with shards the body of the loop calls backward() once for each batch"
            )

    def _on_regroup(self) -> None:
        """The group has been formed again."""
        _note_size(self._job)
        self._is_called = False
        if self.shards is not None and self._partition is not None:
            self._redirect()

    def _pass_boundary(self) -> None:
        """The end of a step: here processes that have come get the state."""
        job = self._job
        number = job.n_boundaries + 1
        can_settle = self._is_reduced and self._has_stepped
        if can_settle and self._is_called:
            job.regroup()
        is_due = can_settle and any(request < number for request in job.requests)
        if is_due:
            job.admit(self._give)
        job.n_boundaries = number
        if is_due:
            self._settle()

    def _settle(self) -> None:
        """Divides the rest of the epoch among the ranks that there are."""
        number = self._job.n_boundaries
        self._agree_members()
        self._job.requests = [request for request in self._job.requests if request >= number]
        partition = self._partition
        assert partition is not None
        if self.shards is None:
            rest = torch.cat([*self._returned, partition.rest(self._at + 1)])
            self._returned = []
            self._divide(rest, partition.batch)
        self._redirect()

    # --- gradients ---

    def _open_gradients(self, n_units: int) -> None:
        self._gradients = _elastic_sum.Gradients(self._parameters, n_units)
        self._nodes: Dict[_elastic_sum.Node, torch.Tensor] = {}
        # The last total must stay until the next one is complete on all ranks.
        self._source = self._gradients.vector()
        self._totals = [self._gradients.vector(), self._gradients.vector()]

    def _counted(self, gradient: torch.Tensor) -> Optional[torch.Tensor]:
        """What is added to .grad, which may have the gradients of earlier bodies."""
        return torch.zeros_like(gradient) if self._is_in_body and self._rows == 0 else None

    def _on_gradient(self, index: int, *_gradients: Any) -> None:
        self._touched.add(index)
        if self._queued is None or self._queued() is None:
            callback = functools.partial(self._after_backward)
            self._queued = weakref.ref(callback)
            torch.autograd.Variable._execution_engine.queue_callback(callback)

    def _after_backward(self) -> None:
        self._queued = None
        if not self._is_in_body:
            raise RuntimeError(f"{_NAME}: backward() outside of the loop over steps()")
        if not self._is_synced:
            if self.shards is not None:
                raise RuntimeError(f"{_NAME}: no_sync() with shards: use more shards instead")
            self._open_rows += self._rows
            return
        if self.shards is not None and self._unit in self._computed:
            raise RuntimeError(
                f"{_NAME}: with shards the body calls backward() once (and "
                "torch.utils.checkpoint with use_reentrant=False)"
            )
        self._add_unit()
        if not self._pending:
            self._reduce()

    def _add_unit(self) -> None:
        is_called = not self._computed and self._job.is_called()
        self._computed.add(self._unit)
        vector = self._source if self.shards is None else self._gradients.vector()
        rows = self._open_rows + self._rows
        self._gradients.pack(vector, self._touched, self._unit, rows, is_called)
        if self.shards is None:
            return
        self._touched.clear()
        _elastic_sum.add_node(self._nodes, (0, self._unit), vector, self.shards)
        if self._unit == 0:
            self._unit_0_buffers = [b.clone() for b in self._synced_buffers]

    def _takes_lost_units(self) -> bool:
        """After a loss: whether the reduction can be made now. With shards the units of the lost
        rank may be this rank's now."""
        if self.shards is None:
            return True
        self._pending = [u for u in self._units_to_run(self._at) if u not in self._computed]
        self._redirect()
        return not self._pending

    def _share_buffers(self) -> bool:
        """Those that unit 0 has left become the buffers of all ranks; False as perform()."""
        job, own = self._job, self._synced_buffers
        sizes = [b.numel() * b.element_size() for b in own]
        device = self._gradients.device
        data = torch.empty(sum(sizes), dtype=torch.uint8, device=device)

        def start() -> None:
            first = self._owner(0)
            if job.rank == first:
                left = own if self.shards is None else self._unit_0_buffers
                parts = [b.contiguous().reshape(-1).view(torch.uint8).to(device) for b in left]
                torch.cat(parts, out=data)
            job.plane(device).broadcast(data, first)

        if not job.perform(
            start, lambda: [data], ends_together=False, again=self._takes_lost_units
        ):
            return False
        self._shared_buffers = [
            part.view(b.dtype).view(b.shape) for part, b in zip(data.split(sizes), own)
        ]
        self._are_buffers_shared = True
        return True

    @torch.no_grad()  # type: ignore[misc]
    def _set_buffers(self, values: Sequence[torch.Tensor]) -> None:
        for buffer, value in zip(self._synced_buffers, values):
            buffer.copy_(value)

    def _sum(self, total: torch.Tensor) -> None:
        job = self._job
        if self.shards is None:
            job.plane(total.device).sum_into(total, self._source)
            return
        of_ranks = [
            _elastic_sum.pieces(self._units_of(rank), self.shards) for rank in range(job.size)
        ]
        _elastic_sum.sum_tree(job, self._nodes, of_ranks, self.shards, total)

    def _reduce(self) -> None:
        """Gradients and buffers of the step, on all ranks."""
        job, n_regroups = self._job, self._job.n_regroups
        self._add_empty_units()
        if self._synced_buffers and not self._are_buffers_shared and not self._share_buffers():
            return
        total = self._totals[0]
        is_performed = job.perform(
            lambda: self._sum(total),
            lambda: [total],
            ends_together=True,
            again=self._takes_lost_units,
        )
        if not is_performed:
            return
        self._totals.reverse()
        self._gradients.unpack(total)
        if self._synced_buffers:
            self._set_buffers(self._shared_buffers)
        self._are_buffers_shared = self.shards is not None
        self._is_called = n_regroups == job.n_regroups and self._gradients.is_called(total)
        self._note_lost_samples(total)
        self._touched.clear()
        self._open_rows = 0
        self._is_reduced = True
        self.step += 1

    def _add_empty_units(self) -> None:
        """With shards: those of this rank without samples, for which no body runs."""
        if self.shards is None:
            return
        for unit in self._units_of(self._job.rank):
            if unit not in self._computed:
                self._computed.add(unit)
                vector = self._gradients.vector()
                self._gradients.pack(vector, (), unit, 0, False)
                _elastic_sum.add_node(self._nodes, (0, unit), vector, self.shards)

    def _note_lost_samples(self, total: torch.Tensor) -> None:
        partition = self._partition
        assert partition is not None
        complete = self._gradients.units_of(total)
        for at in self._open_steps:
            for unit in range(partition.n_units):
                if unit not in complete and len(partition.rows(at, unit)) > 0:
                    self._returned.append(partition.rows(at, unit))
        self._open_steps = []

    # --- the state for new processes ---

    def _give(self) -> Dict[str, Any]:
        partition = self._partition
        assert partition is not None
        return {
            "names": self._names,
            "model": [*self._all, *self._buffers],
            "optimizers": [tool.state_dict() for tool in self._optimizers],
            "others": [tool.state_dict() for tool in self._others],
            "state": self.state,
            "random": _elastic_state.random_state(),
            "place": self._job.place(),
            "samples": [partition.order, partition.n_units, partition.batch, self._returned],
            "position": [self._epoch, self._partition_epoch, self._at, self.step],
        }

    def _receive(self) -> None:
        """In a new process: waits for the others' end of a step, and goes on from there."""
        given = self._job.receive()
        if given["names"] != self._names:
            raise RuntimeError(f"{_NAME}: this process has other parameters than the others")
        with torch.no_grad():
            for tensor, value in zip([*self._all, *self._buffers], given["model"]):
                tensor.copy_(value)
        for tool, value in zip(self._optimizers, given["optimizers"]):
            tool.load_state_dict(value)
        for tool, value in zip(self._others, given["others"]):
            tool.load_state_dict(value)
        self.state.clear()
        self.state.update(given["state"])
        order, n_units, batch, self._returned = given["samples"]
        self._partition = Partition(order, n_units, batch)
        self._epoch, self._partition_epoch, self._at, self.step = given["position"]
        self._job.take_place(given["place"])
        _elastic_state.set_random_state(given["random"])
        self._job.n_boundaries += 1
        self._settle()


class _Steps:
    """What Run.steps() gives."""

    def __init__(self, run: Run, loader: Any) -> None:
        self._run, self._loader = run, loader

    def __iter__(self) -> Iterator[Any]:
        return self._run._iterate(self._loader)

    def __len__(self) -> int:
        """Steps of a whole epoch."""
        run, feed = self._run, self._run._feed_of(self._loader)
        samples = (run.shards or run._job.size) * feed.batch
        n = len(self._loader.dataset)
        return n // samples if feed.drop_last else -(-n // samples)
