# SPDX-License-Identifier: Apache-2.0
"""A strategy of Lightning whose training goes on when ranks are lost (elastic.py).

    trainer = Trainer(strategy=lockstep.torch.lightning.ElasticStrategy(), ...)

It is DDPStrategy with the gradients, samples and recovery of elastic.Run: from on_train_start() on
Trainer.fit() reads the batches of Run.steps(). A new process fits from the beginning, alone, and in
place of its first batch it waits for the state of the others, with their progress and callbacks.
"""
from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, Optional

import torch.distributed as dist
from lightning.fabric.utilities.rank_zero import rank_zero_only as fabric_rank_zero_only
from lightning.pytorch.loops.fetchers import _DataFetcher
from lightning.pytorch.loops.loop import _Loop
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer import call
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from . import elastic

__all__ = ["ElasticStrategy"]


class _Fetcher(_DataFetcher):
    """The batches of Run.steps(), in place of those of the Trainer."""

    def __init__(self, run: elastic.Run, loader: Any, trainer: Any) -> None:
        self._run, self._loader, self._trainer = run, loader, trainer
        super().__init__()
        self.setup(trainer.fit_loop._combined_loader)

    def __iter__(self) -> "_Fetcher":
        self.iterator = self._run.steps_of_epoch(self._trainer.current_epoch, self._loader)
        self.fetched = 0
        return self

    def __next__(self) -> Any:
        self.done = False
        batch = super().__next__()
        self.done = self._run.is_at_last_step()
        return batch, 0, 0


class _Progress:
    """What a new process continues: counters of the loops, callbacks."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def state_dict(self) -> Dict[str, Any]:
        trainer = self._trainer
        return {
            "loops": trainer.fit_loop.state_dict(),
            "callbacks": call._call_callbacks_state_dict(trainer),
            "should_stop": trainer.should_stop,
        }

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        trainer = self._trainer
        trainer.fit_loop.load_state_dict(state["loops"])
        _Loop.restarting.fset(trainer.fit_loop, False)  # it goes on in its first batch
        call._call_callbacks_load_state_dict(trainer, state)
        trainer.should_stop = state["should_stop"]


class ElasticStrategy(DDPStrategy):
    """See the text of the module. named: as for DDPStrategy."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**{"process_group_backend": "lockstep", **named})
        self._run: Optional[elastic.Run] = None

    # --- ranks change ---

    @property
    def global_rank(self) -> int:
        if not dist.is_initialized():
            return int(super().global_rank)
        # A new process must not write what rank 0 writes.
        return max(1, super().global_rank) if elastic.is_new() else dist.get_rank()

    @property
    def world_size(self) -> int:
        return dist.get_world_size() if dist.is_initialized() else int(super().world_size)

    def _note_rank(self) -> None:
        rank_zero_only.rank = fabric_rank_zero_only.rank = self.global_rank

    # --- the training ---

    def configure_ddp(self) -> None:
        """Gradients are reduced by Run, which needs no DistributedDataParallel."""

    def on_train_start(self) -> None:
        trainer = self.lightning_module.trainer
        fit = trainer.fit_loop
        (loader,) = fit._combined_loader.flattened
        scaler = getattr(self.precision_plugin, "scaler", None)
        others = [config.scheduler for config in trainer.lr_scheduler_configs]
        others += [scaler] if scaler is not None else []
        self._run = elastic.Run(self.model, self.optimizers, *others, _Progress(trainer))
        self._run.on_new_ranks(self._note_rank)
        fit._data_fetcher = iter(_Fetcher(self._run, loader, trainer))
        if trainer.limit_train_batches == 1.0:  # an epoch has more steps when a rank is lost
            fit.max_batches = float("inf")
        if trainer.val_check_interval == 1.0:
            trainer.val_check_batch = float("inf")

    @contextlib.contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        assert self._run is not None
        with self._run.no_sync():
            yield

    def post_backward(self, closure_loss: Any) -> None:
        """Samples of a rank that was lost in the last step make one more step."""
        assert self._run is not None
        epoch_loop = self.lightning_module.trainer.fit_loop.epoch_loop
        epoch_loop.batch_progress.is_last_batch = self._run.is_at_last_step()

    def on_train_end(self) -> None:
        assert self._run is not None
        self._run.end()
