#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""learn_parity.py LEARN-PEER LOCKSTEP: optimizers, clipping, SyncBatchNorm, communication hooks
and schedules against PyTorch.

A small network with two batch norms is trained 20 steps from the same weights on the same batches
by both. Distances of parameters and running statistics are L2 norms of each tensor, relative: at
most 1e-3, with gradients in 16 bits too. There float32's last place may tip a rounding over that
is worth 2^-11 (float16) or 2^-8 (bfloat16) of a number, and each step makes more of it; at the
rate of the others 20 steps in bfloat16 carry even PyTorch 2e-3 away from PyTorch with a batch's
rows in another order, so that they are taken at 0.02. Learning rates are compared point by point,
to 1e-12 relative. Exit 77: skipped, with a reason.
"""

import os
import subprocess
import sys
import tempfile
import warnings

STEPS, RANKS, BATCH, BOUND = 20, 2, 8, 1e-3


def skip(why):
    print("skipped:", why)
    sys.exit(77)


try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
    from torch import nn
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.optim import lr_scheduler

    from tensor_file import distance, read_safetensors, write_safetensors
except ImportError as error:
    skip(f"python3-torch and python3-numpy are needed ({error})")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(2, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 12, 3, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(12)
        self.fc = nn.Linear(12 * 4 * 4, 5)

    def forward(self, x):
        h = torch.relu(self.bn1(self.conv1(x)))
        return self.fc(torch.relu(self.bn2(self.conv2(h))).flatten(1))


def make_input(folder):
    torch.manual_seed(3)
    net = Net()
    for bn in (net.bn1, net.bn2):  # from 0 a relative distance would compare rounding alone
        nn.init.uniform_(bn.bias, -0.5, 0.5)
    y = torch.randint(0, 5, (STEPS, RANKS * BATCH))
    x = torch.randn(STEPS, RANKS * BATCH, 2, 8, 8) + y[:, :, None, None, None] * 0.3 + 1
    write_safetensors(f"{folder}/in.safetensors", {**net.state_dict(), "x": x, "y": y})


def groups_of(net, r):
    """The groups of learn_peer: no decay of batch norms, and the last layer at half the rate."""
    if not r["groups"]:
        return net.parameters()
    half = {"lr": r["lr"] / 2, "weight_decay": 0.1}
    parts = {"conv": {}, "bn": {"weight_decay": 0.0}, "fc": half}
    return [
        {"params": [p for name, p in net.named_parameters() if part in name], **options}
        for part, options in parts.items()
    ]


def make_optimizer(net, r):
    parameters = groups_of(net, r)
    if r["optimizer"] == "sgd":
        return torch.optim.SGD(
            parameters, lr=r["lr"], momentum=r["momentum"], weight_decay=r["wd"]
        )
    kind = torch.optim.Adam if r["optimizer"] == "adam" else torch.optim.AdamW
    return kind(parameters, lr=r["lr"], weight_decay=r["wd"])


def run_torch(net, r, x, y):
    optimizer = make_optimizer(net, r)
    for step in range(STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(
            net(x[step]), y[step], label_smoothing=r["smoothing"]
        ).backward()
        if r["clip"] > 0:
            nn.utils.clip_grad_norm_(net.parameters(), r["clip"])
        optimizer.step()


def start(folder, r):
    tensors = read_safetensors(f"{folder}/in.safetensors")
    x, y = tensors.pop("x"), tensors.pop("y")
    net = Net()
    net.load_state_dict(tensors)
    return net, x, y


def bf16_hook(_, bucket):
    """torch's bf16_compress_hook, for gloo, which has no bfloat16: the same numbers travel as
    float32."""
    rounded = (bucket.buffer() / RANKS).bfloat16().float()
    future = dist.all_reduce(rounded, async_op=True).get_future()
    return future.then(lambda f: f.value()[0].bfloat16().float())


def one_rank_of_torch(rank, folder, r):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous-{r['name']}", rank=rank, world_size=RANKS
    )
    net, x, y = start(folder, r)
    ddp = nn.parallel.DistributedDataParallel(net)
    if r["hook"] == 1:
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if r["hook"] == 2:
        ddp.register_comm_hook(None, bf16_hook)
    mine = slice(rank * BATCH, (rank + 1) * BATCH)
    run_torch(ddp, r, x[:, mine], y[:, mine])
    if rank == 0:
        write_safetensors(f"{folder}/torch-{r['name']}.safetensors", net.state_dict())
    dist.barrier()
    dist.destroy_process_group()


def torch_result(folder, r):
    if r["whole"]:
        torch.set_num_threads(1)
        net, x, y = start(folder, r)
        run_torch(net, r, x, y)
        return net.state_dict()
    mp.spawn(one_rank_of_torch, args=(folder, r), nprocs=RANKS)
    return read_safetensors(f"{folder}/torch-{r['name']}.safetensors")


def lockstep_result(peer, tool, folder, r):
    out = f"{folder}/lockstep-{r['name']}.safetensors"
    values = [
        f"{k}={r[k]}"
        for k in ("optimizer", "lr", "momentum", "wd", "clip", "smoothing", "hook", "sync", "plain",
                  "groups")
    ]
    values += [f"rows={n}" for n in r["rows"]]
    subprocess.run(
        [
            tool,
            "run",
            "--nproc-per-node",
            str(RANKS),
            peer,
            "train",
            f"{folder}/in.safetensors",
            out,
        ]
        + values,
        check=True,
        timeout=120,
    )
    return read_safetensors(out)


DEFAULTS = {
    "optimizer": "sgd",
    "lr": 0.05,
    "momentum": 0.9,
    "wd": 5e-4,
    "clip": 0.0,
    "smoothing": 0.0,
    "hook": 0,
    "sync": 0,
    "plain": 0,
    "groups": 0,
    "whole": False,
    "rows": [],
}

# `whole`: PyTorch in one process with the batch of all ranks. Hooks: a last bit of a gradient can
# change its rounding to 16 bits, and larger steps amplify the difference.
TRAININGS = [
    {"name": "sgd"},
    {"name": "plain-mean", "plain": 1},
    {"name": "clipped", "clip": 0.5, "smoothing": 0.1},
    {"name": "adam", "optimizer": "adam", "lr": 0.002},
    {"name": "adamw", "optimizer": "adamw", "lr": 0.002, "wd": 0.05},
    {"name": "groups-sgd", "groups": 1, "wd": 0.02},
    {"name": "groups-adamw", "groups": 1, "optimizer": "adamw", "lr": 0.002, "wd": 0.05},
    {"name": "sync-batch-norm", "sync": 1, "whole": True},
    {"name": "sync-batch-norm-unequal-rows", "sync": 1, "whole": True, "rows": [1, 15]},
    {"name": "sync-batch-norm-no-rows", "sync": 1, "whole": True, "rows": [16, 0]},
    {"name": "fp16", "hook": 1, "lr": 0.02},
    {"name": "bf16", "hook": 2, "lr": 0.02},
]


def compare_training(peer, tool, folder, given):
    r = {**DEFAULTS, **given}
    begun = read_safetensors(f"{folder}/in.safetensors")
    ours, theirs = lockstep_result(peer, tool, folder, r), torch_result(folder, r)
    assert sorted(ours) == sorted(theirs), f"names differ: {sorted(ours)} and {sorted(theirs)}"
    apart = {name: distance(ours[name], theirs[name]) for name in theirs}
    moved = max(distance(begun[name], theirs[name]) for name in theirs if name.endswith("weight"))
    worst = max(apart, key=apart.get)
    good = apart[worst] <= BOUND and moved > 10 * BOUND
    print(
        f"{'ok' if good else 'BAD':4}{r['name']:30} apart {apart[worst]:.1e} "
        f"({worst}), moved {moved:.1e}"
    )
    return good


def torch_rates(make, n):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4)
    schedule, rates = make(optimizer), []
    for _ in range(n):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


def warmed(make, n, factor):
    return lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, start_factor=factor, total_iters=n), make(o)], [n]
    )


def step(o): return lr_scheduler.StepLR(o, 7, gamma=0.3)
def cosine(o): return lr_scheduler.CosineAnnealingLR(o, 40, eta_min=0.001)
def multi(o): return lr_scheduler.MultiStepLR(o, [5, 11, 11, 30], gamma=0.2)
def constant(o): return lr_scheduler.LambdaLR(o, lambda t: 1.0)


# name, torch's, number of rates, then learn_peer's: kind base min gamma step total warmup factor
# milestones
SCHEDULES = [
    ("step", step, 40, (1, 0.4, 0, 0.3, 7, 0, 0, 0)),
    ("cosine", cosine, 41, (2, 0.4, 0.001, 0, 0, 40, 0, 0)),
    ("multi-step", multi, 50, (3, 0.4, 0, 0.2, 0, 0, 0, 0, 5, 11, 11, 30)),
    (
        "linear",
        lambda o: lr_scheduler.LinearLR(o, 1.0, 0.05, 30),
        40,
        (4, 0.4, 0.02, 0, 0, 30, 0, 0),
    ),
    ("warm-up", lambda o: lr_scheduler.LinearLR(o, total_iters=9), 20, (0, 0.4, 0, 0, 0, 0, 9, 0)),
    ("warm-up, constant", warmed(constant, 9, 0.01), 20, (0, 0.4, 0, 0, 0, 0, 9, 0.01)),
    ("warm-up, step", warmed(step, 5, 0.1), 40, (1, 0.4, 0, 0.3, 7, 0, 5, 0.1)),
    ("warm-up, cosine", warmed(cosine, 6, 0.2), 47, (2, 0.4, 0.001, 0, 0, 40, 6, 0.2)),
    (
        "warm-up, multi-step",
        warmed(multi, 4, 0.25),
        50,
        (3, 0.4, 0, 0.2, 0, 0, 4, 0.25, 5, 11, 11, 30),
    ),
]


def compare_schedule(peer, name, make, n, values):
    theirs = torch_rates(make, n)
    text = subprocess.run(
        [peer, "schedule", str(n)] + [str(v) for v in values],
        check=True,
        timeout=60,
        stdout=subprocess.PIPE,
    ).stdout
    ours = [float(line) for line in text.split()]
    apart = max(abs(a - b) / b for a, b in zip(ours, theirs))
    good = len(ours) == len(theirs) and apart <= 1e-12
    print(f"{'ok' if good else 'BAD':4}{name:30} {len(ours)} rates, apart {apart:.1e}")
    return good


def main():
    warnings.simplefilter("ignore")
    peer, tool = sys.argv[1:3]
    os.environ["OMP_NUM_THREADS"] = "1"
    results = [compare_schedule(peer, *s) for s in SCHEDULES]
    with tempfile.TemporaryDirectory() as folder:
        make_input(folder)
        results += [compare_training(peer, tool, folder, t) for t in TRAININGS]
    print("parity holds" if all(results) else "parity is broken")
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
