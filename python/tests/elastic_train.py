# SPDX-License-Identifier: Apache-2.0
"""elastic_train.py FOLDER [--shards V] ...: a training of a small network, whose ranks end as a
test asks for: test_elastic.py.

Each rank writes the samples of its batches to FOLDER/samples.MEMBER, a line for each body of the
loop, with the number of completed steps before it; and its process id to FOLDER/pid.MEMBER. All
print the sha256 of the end. At --die MEMBER@STEP:WHERE a process ends: WHERE is begin, forward,
backward, optimizer (some have made their step) or update, behind which it is killed;
"raise-backward" raises an exception. With --gate rank 0 begins a step only if FOLDER/allowed has a
larger number, and with FOLDER/hold only when a new process waits to join.
"""
import argparse
import contextlib
import hashlib
import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

import lockstep.torch  # noqa: F401
import lockstep.torch.elastic as elastic

MEMBER = int(os.environ.get("LOCKSTEP_MEMBER", os.environ.get("RANK", "0")))


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--shards", type=int)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=203)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--start", default="fork")
    parser.add_argument("--plain", action="store_true", help="without DistributedDataParallel")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--log-loss", action="store_true", help="all_reduce in the body")
    parser.add_argument("--data-plane", help="another backend for it")
    parser.add_argument("--scaler", action="store_true")
    parser.add_argument("--optimizers", action="store_true", help="one network for each optimizer")
    parser.add_argument("--die", action="append", default=[])
    parser.add_argument("--gate", action="store_true")
    parser.add_argument("--hold", action="append", type=int, default=[],
                        help="a step in which rank 0 waits until a new process waits to join")
    return parser.parse_args()


class Samples(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(8, generator=generator) + 0.1 * torch.rand(8)  # the sample, augmented
        return index, x, x[:3].sum().reshape(1)


def network():
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1)
    )


def optimizers():
    """All of this torch that a training without closures and sparse gradients can have."""
    kinds = {"Adam": [{}, {"amsgrad": True}, {"foreach": True}, {"fused": True}],
             "SGD": [{"lr": 0.01}, {"lr": 0.01, "momentum": 0.9, "nesterov": True}]}
    kinds["AdamW"] = kinds["Adagrad"] = [{}, {"fused": True}]
    kinds["RMSprop"] = [{"momentum": 0.5, "centered": True}]
    for name in ("Adadelta", "Adafactor", "Adamax", "ASGD", "NAdam", "RAdam", "Rprop"):
        kinds[name] = [{}]
    for name, options in kinds.items():
        for named in options:
            with contextlib.suppress(AttributeError, TypeError, RuntimeError):  # an older torch
                getattr(torch.optim, name)([torch.zeros(2, requires_grad=True)], **named)
                yield getattr(torch.optim, name), named


def die(args, run, where):
    for text in args.die:
        at, how = text.split(":")
        member, step = map(int, at.split("@"))
        if member == MEMBER and step == run.step and how.split("-")[-1] == where:
            print(f"ends at {text}", flush=True)
            if how.startswith("raise"):
                raise KeyError("the test's error")
            os.kill(os.getpid(), signal.SIGKILL)


def has_new_process(run):
    """Whether one waits to be called, or is in the group and waits for the state, or for the next
    group: a rank was lost."""
    return run._job.is_called() or bool(run._job.joining) or run._job._has_lost_ranks()


def wait_as_asked(args, run):
    if dist.get_rank() != 0:
        return
    while run.step in args.hold and not has_new_process(run):
        time.sleep(0.01)
    if not args.gate:
        return
    hold, allowed = (os.path.join(args.folder, name) for name in ("hold", "allowed"))
    while run.step >= int(open(allowed).read() or "0"):
        time.sleep(0.005)
    while os.path.exists(hold):
        time.sleep(0.01)
        if has_new_process(run):
            with contextlib.suppress(FileNotFoundError):
                os.remove(hold)


def main():
    args = parse()
    torch.set_num_threads(1)
    dist.init_process_group("lockstep")
    kinds = list(optimizers()) if args.optimizers else [(torch.optim.Adam, {"lr": 0.01})]
    nets = nn.ModuleList([network() for _ in kinds])
    models = list(nets) if args.plain else [nn.parallel.DistributedDataParallel(n) for n in nets]
    forwards = [torch.compile(m, backend="aot_eager") if args.compile else m for m in models]
    tools = [kind(m.parameters(), **named) for (kind, named), m in zip(kinds, models)]
    scheduler = torch.optim.lr_scheduler.StepLR(tools[0], 7, gamma=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=5) if args.scaler else None
    others = [scheduler] + ([scaler] if scaler else [])
    data = Samples(args.samples)
    context = args.start if args.workers else None
    loader = DataLoader(
        data, batch_size=4, sampler=DistributedSampler(data), num_workers=args.workers,
        multiprocessing_context=context,
    )
    counts = {"bodies": 0}
    with open(os.path.join(args.folder, f"pid.{MEMBER}"), "w") as file:
        file.write(str(os.getpid()))
    run = elastic.Run(models, tools, *others, shards=args.shards, seed=3, state=counts,
                      data_plane=args.data_plane)
    log = open(os.path.join(args.folder, f"samples.{MEMBER}"), "a")
    for epoch in run.epochs(args.epochs):
        for i, (index, x, y) in enumerate(run.steps(loader)):
            die(args, run, "begin")
            counts["bodies"] += 1
            counted = index.tolist() if run._rows else []
            log.write(json.dumps([epoch, run.step, run._unit, counted]) + "\n")
            log.flush()
            wait_as_asked(args, run)
            synced = (i + 1) % args.accumulate == 0
            if args.accumulate > 1 and not args.plain:
                models[0].require_backward_grad_sync = synced
            loss = sum((forward(x) - y).square().mean() for forward in forwards)
            die(args, run, "forward")
            if scaler:
                scaler.scale(loss).backward()
            else:
                loss.backward()
            if args.log_loss:
                total = loss.detach().clone()
                dist.all_reduce(total)
            die(args, run, "backward")
            if not synced:
                continue
            for i, tool in enumerate(tools):
                if scaler:
                    scaler.unscale_(tool)
                    nn.utils.clip_grad_norm_(models[i].parameters(), 1.0)
                    scaler.step(tool)
                else:
                    tool.step()
                if i == len(tools) // 2:
                    die(args, run, "optimizer")
                tool.zero_grad()
            if scaler:
                scaler.update()
            scheduler.step()
            die(args, run, "update")
    # Without a reduction at the end of an epoch the ranks have different running statistics.
    state = list(nets.parameters() if args.accumulate > 1 else nets.state_dict().values())
    states = [s for tool in tools for s in tool.state_dict()["state"].values()]
    state += [torch.as_tensor(v) for s in states for v in s.values() if v is not None]
    digest = hashlib.sha256()
    for tensor in state:
        digest.update(tensor.detach().contiguous().numpy().tobytes())
    digest.update(json.dumps([tools[0].param_groups[0]["lr"]]).encode())
    if scaler:
        digest.update(json.dumps(scaler.state_dict(), sort_keys=True).encode())
    print(f"end {digest.hexdigest()} rank {dist.get_rank()} of {dist.get_world_size()} "
          f"steps {run.step}", flush=True)


if __name__ == "__main__":
    main()
