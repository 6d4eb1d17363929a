# SPDX-License-Identifier: Apache-2.0
"""python -m lockstep.torch.selftest [--ranks N]: checks that this installation works.

Starts N ranks on this machine, compares collectives with what they should give, trains a step with
DistributedDataParallel, and ends one rank: the others must name it.
"""
from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from typing import Any

import torch
import torch.distributed as dist

import lockstep.torch


def _check(what: str, good: bool) -> None:
    if not good:
        raise RuntimeError(f"selftest: {what} gave a wrong result")


def _collectives(rank: int, n: int) -> None:
    total = torch.full((1000,), rank + 1.0)
    dist.all_reduce(total)
    _check("all_reduce", bool((total == n * (n + 1) / 2).all()))
    root = torch.full((3,), float(rank))
    dist.broadcast(root, n - 1)
    _check("broadcast", bool((root == n - 1).all()))
    parts = [torch.zeros(2, dtype=torch.int64) for _ in range(n)]
    dist.all_gather(parts, torch.tensor([rank, rank]))
    _check("all_gather", [int(part[0]) for part in parts] == list(range(n)))
    names: Any = [None] * n
    dist.all_gather_object(names, f"rank {rank}")
    _check("all_gather_object", names == [f"rank {other}" for other in range(n)])


def _train(rank: int, n: int) -> None:
    torch.manual_seed(rank)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.randn(16, 8)).square().mean().backward()
    optimizer.step()
    sums: Any = [None] * n
    weights = [parameter.detach().double().sum().item() for parameter in model.parameters()]
    dist.all_gather_object(sums, weights)
    _check("DistributedDataParallel", all(other == sums[0] for other in sums))


def _rank(rank: int, n: int, path: str) -> None:
    dist.init_process_group("lockstep", store=dist.FileStore(path, n), rank=rank, world_size=n)
    _collectives(rank, n)
    _train(rank, n)
    dist.barrier()
    if rank == n - 1 and n > 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if n > 1:
        start = time.monotonic()
        try:
            dist.all_reduce(torch.ones(1))
        except RuntimeError as error:
            seconds = time.monotonic() - start
            _check("the error of a killed rank", f"rank {n - 1}" in str(error))
            if rank == 0:
                print(f"a killed rank was named after {seconds:.2f} s: {error}", flush=True)
        else:
            raise RuntimeError("selftest: all_reduce did not notice a killed rank")


def main() -> int:
    """The exit code: 0, all is well."""
    parser = argparse.ArgumentParser(prog="python -m lockstep.torch.selftest")
    parser.add_argument("--ranks", type=int, default=2, metavar="N")
    n = parser.parse_args().ranks
    if n < 1:
        parser.error("--ranks is at least 1")
    form, reason = lockstep.torch.form()
    print(f"torch {torch.__version__}, liblockstep {lockstep.torch.version()}")
    print(f"form: {form} ({reason})", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        # Forked before any thread is started, so that torch is imported once.
        context = multiprocessing.get_context("fork")
        arguments = (n, os.path.join(folder, "store"))
        processes = [context.Process(target=_rank, args=(rank, *arguments)) for rank in range(n)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    codes = [process.exitcode for process in processes]
    expected = [0] * n if n == 1 else [0] * (n - 1) + [-signal.SIGKILL]
    if codes != expected:
        print(f"selftest failed: exit codes {codes}", file=sys.stderr)
        return 1
    print(f"all is well on {n} ranks")
    return 0


if __name__ == "__main__":
    sys.exit(main())
