# SPDX-License-Identifier: Apache-2.0
"""PyTorch's ways to train on several ranks give with Lockstep what they give with gloo."""
import importlib
import shutil
import sys
import tempfile
import unittest

import ranks
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

N = 2


def network():
    torch.manual_seed(7)
    first, second, last = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 4)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last)


def batch(rank, step, rows=8):
    return torch.randn(rows, 16, generator=torch.Generator().manual_seed(100 * step + rank))


def parameters(model):
    return [p.detach().clone() for p in model.parameters()]


def train(model, rank, optimizer=None, steps=3, forward=None):
    """The losses, and the parameters at the end."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = (forward or model)(batch(rank, step)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def ddp(rank):
    model = DDP(network(), bucket_cap_mb=0.001)
    return train(model, rank) + parameters(model)


def ddp_static_graph(rank):
    model = DDP(network(), static_graph=True)
    return train(model, rank) + parameters(model)


class Branches(nn.Module):
    """A network of which a rank uses one branch."""

    def __init__(self):
        super().__init__()
        self.body, self.left, self.right = network(), nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x, use_left):
        return (self.left if use_left else self.right)(self.body(x))


def ddp_find_unused_parameters(rank):
    torch.manual_seed(1)
    model = DDP(Branches(), find_unused_parameters=True)
    losses = train(model, rank, forward=lambda x: model(x, rank == 0))
    return losses + parameters(model)


def ddp_join(rank):
    from torch.distributed.algorithms.join import Join

    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with Join([model]):
        for step in range(3 + 2 * rank):
            optimizer.zero_grad()
            model(batch(rank, step)).square().mean().backward()
            optimizer.step()
    return parameters(model)


def ddp_no_sync(rank):
    model = DDP(network())
    with model.no_sync():
        model(batch(rank, 0)).square().mean().backward()
    model(batch(rank, 1)).square().mean().backward()
    return [p.grad.clone() for p in model.parameters()]


def ddp_hook(rank, hook, state=None, **options):
    model = DDP(network(), **options)
    model.register_comm_hook(state, hook)
    return train(model, rank) + parameters(model)


def ddp_fp16_hook(rank):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    return ddp_hook(rank, default_hooks.fp16_compress_hook)


def ddp_power_sgd_hook(rank):
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

    state = power.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    return ddp_hook(rank, power.powerSGD_hook, state)


def ddp_power_sgd_hook_several_buckets(rank):
    """The hook that docs/pytorch.md shows."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

    def one_after_the_other(state, bucket):
        future = power.powerSGD_hook(state, bucket)
        future.wait()
        return future

    state = power.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    return ddp_hook(rank, one_after_the_other, state, bucket_cap_mb=0.001)


def ddp_post_local_sgd(rank):
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as local
    from torch.distributed.algorithms.model_averaging import averagers
    from torch.distributed.optim import PostLocalSGDOptimizer

    model = DDP(network())
    subgroup, _ = dist.new_subgroups(group_size=1)
    model.register_comm_hook(local.PostLocalSGDState(None, subgroup, 1), local.post_localSGD_hook)
    averager = averagers.PeriodicModelAverager(period=2, warmup_steps=1)
    inner = torch.optim.SGD(model.parameters(), 0.05)
    return train(model, rank, PostLocalSGDOptimizer(inner, averager), 4) + parameters(model)


def ddp_builtin_hook(rank):
    model = DDP(network())
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    return train(model, rank) + parameters(model)


def compiled_ddp(rank, optimize=True):
    torch._dynamo.config.optimize_ddp = optimize
    model = DDP(network())
    compiled = torch.compile(model, backend="aot_eager")
    losses = train(model, rank, forward=lambda x: compiled(x))
    return losses + parameters(model)


def compiled_ddp_not_split(rank):
    return compiled_ddp(rank, False)


def compiled_ddp_python_reducer(rank):
    return compiled_ddp(rank, "python_reducer")


def compiled_collectives(rank):
    """Functional collectives, those that Dynamo makes of others, and calls between graphs."""
    from torch.distributed import _functional_collectives as functional

    world = dist.group.WORLD

    def in_graph(x):
        total = functional.all_reduce(x, "sum", world)
        everywhere = functional.all_gather_tensor(total * (rank + 1), 0, world)
        part = functional.reduce_scatter_tensor(everywhere, "sum", 0, world)
        dist.all_reduce(part)
        return total, everywhere, part

    def between_graphs(x):
        y = x * 2
        dist.broadcast(y, 1)
        work = dist.all_reduce(y, async_op=True)
        work.wait()
        return y + rank

    x = torch.arange(4.0) + rank
    graph = torch.compile(in_graph, backend="aot_eager", fullgraph=True)
    return [*graph(x), torch.compile(between_graphs, backend="aot_eager")(x)]


def zero(rank):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DDP(network())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    losses = train(model, rank, optimizer)
    optimizer.consolidate_state_dict(to=0)
    states = len(optimizer.state_dict()["state"]) if rank == 0 else 0
    return losses + parameters(model) + [torch.tensor(states)]


def fsdp1(rank):
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    model = FSDP(
        network(), auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), device_id=torch.device("cpu")
    )
    losses = train(model, rank)
    with FSDP.summon_full_params(model):
        return losses + parameters(model)


def fsdp2(rank):
    from torch.distributed.fsdp import fully_shard

    mesh = dist.device_mesh.init_device_mesh("cpu", (N,))
    model = network()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    losses = train(model, rank)
    return losses + [p.full_tensor().detach() for p in model.parameters()]


def dtensor(rank):
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    mesh = dist.device_mesh.init_device_mesh("cpu", (N,))
    whole = torch.arange(48.0).reshape(6, 8)
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    columns = rows.redistribute(mesh, [Shard(1)])
    partial = torch.distributed.tensor.DTensor.from_local(whole * (rank + 1), mesh, [Partial()])
    product = torch.matmul(columns, distribute_tensor(whole.t().contiguous(), mesh, [Shard(0)]))
    return [
        rows.to_local(),
        columns.to_local(),
        partial.redistribute(mesh, [Replicate()]).to_local(),
        partial.redistribute(mesh, [Shard(0)]).to_local(),
        product.full_tensor(),
    ]


def tensor_parallel(rank):
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = dist.device_mesh.init_device_mesh("cpu", (N,))
    model = network()
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    losses = train(model, 0)  # all ranks have the same rows
    full = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return losses + [p.detach() for p in full]


def checkpoint(rank):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.fsdp import fully_shard

    folder = [tempfile.mkdtemp(prefix="lockstep-test-") if rank == 0 else None]
    dist.broadcast_object_list(folder)
    model = network()
    fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (N,)))
    losses = train(model, rank)
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder[0])
    saved = [p.full_tensor().detach().clone() for p in model.parameters()]
    train(model, rank)
    state = {"model": model.state_dict()}
    dcp.load(state, checkpoint_id=folder[0])
    model.load_state_dict(state["model"])
    loaded = [p.full_tensor().detach().clone() for p in model.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(saved, loaded)), "loaded"
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder[0])
    return losses + loaded


def pipelining(rank):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    whole = network()
    part = whole[:2] if rank == 0 else whole[2:]
    stage = PipelineStage(part, rank, N, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 4, loss_fn=lambda out, target: (out - target).square().mean())
    losses = []
    if rank == 0:
        schedule.step(batch(0, 0))
    else:
        schedule.step(target=torch.zeros(8, 4), losses=losses)
    return [loss.detach() for loss in losses] + [p.grad.clone() for p in part.parameters()]


def random_state(rank):
    """Ranks with different seeds draw the same numbers after rank 0's state was sent."""
    torch.manual_seed(rank)
    state = torch.get_rng_state()
    dist.broadcast(state, 0)
    torch.set_rng_state(state)
    return [torch.rand(4)]


CASES = [
    ddp,
    ddp_static_graph,
    ddp_find_unused_parameters,
    ddp_join,
    ddp_no_sync,
    ddp_fp16_hook,
    ddp_power_sgd_hook,
    ddp_power_sgd_hook_several_buckets,
    ddp_post_local_sgd,
    ddp_builtin_hook,
    compiled_ddp,
    compiled_ddp_not_split,
    compiled_ddp_python_reducer,
    compiled_collectives,
    zero,
    fsdp1,
    fsdp2,
    dtensor,
    tensor_parallel,
    checkpoint,
    pipelining,
    random_state,
]
CPP_ONLY = {"ddp_builtin_hook"}  # the hook is C++ and cannot call a group in Python


def results(case, backend):
    def body(rank, n, store):
        torch.set_num_threads(1)
        ranks.join(store, rank, n, backend=backend)
        out = case(rank)
        dist.destroy_process_group()
        return out

    return ranks.run(N, body)


def make_test(case):
    def test(self):
        if case.__name__ in CPP_ONLY and FORM == "python":
            self.skipTest("needs the C++ form")
        expected, got = results(case, "gloo"), results(case, "lockstep")
        for rank in range(N):
            self.assertEqual(len(got[rank]), len(expected[rank]))
            self.assertGreater(len(got[rank]), 0)
            for a, b in zip(got[rank], expected[rank]):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)

    return test


class Training(unittest.TestCase):
    pass


for _case in CASES:
    setattr(Training, "test_" + _case.__name__, make_test(_case))

if __name__ == "__main__":
    import lockstep.torch

    FORM = lockstep.torch.form()[0]
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}, form {FORM}")
    if not hasattr(torch.distributed, "device_mesh"):
        print("FSDP2, DTensor and pipelining need torch 2.4")
        sys.exit(77)
    for name in ("checkpoint", "fsdp", "optim", "pipelining", "tensor.parallel"):
        importlib.import_module("torch.distributed." + name)  # once, before the ranks are forked
    importlib.import_module("torch._dynamo")
    unittest.main(verbosity=2)
