# SPDX-License-Identifier: Apache-2.0
"""recovery_elastic.py FOLDER [--steps N] [--net convnet|resnet18] [--kind elastic|ddp] [--backend
NAME]: for bench/recovery, the network of recovery_torch.py with lockstep.torch.elastic. Rank 0
writes a line of FOLDER/steps.jsonl for each step. With --kind ddp PyTorch's reduction is used, and
nothing is recovered; with --steps the ranks stop after so many, and rank 0 prints the median step
time."""
import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
from recovery_torch import network
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

import lockstep.torch
from lockstep.torch import elastic

EPOCHS = 1 << 30


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=1 << 62)
    parser.add_argument("--net", choices=["convnet", "resnet18"], default="convnet")
    parser.add_argument("--kind", choices=["elastic", "ddp"], default="elastic")
    parser.add_argument("--backend", default="lockstep")
    return parser.parse_args()


class Images(Dataset):
    def __init__(self, shape):
        self.images = torch.rand(256, *shape)

    def __len__(self):
        return 60000

    def __getitem__(self, index):
        return self.images[index % len(self.images)], index % 10


def open_net(name):
    torch.manual_seed(1)
    if name == "convnet":
        return network(), Images((1, 28, 28)), 12
    from torchvision.models import resnet18

    return resnet18(num_classes=10), Images((3, 32, 32)), 32


class Plain:
    """The loop without recovery."""

    def epochs(self, n):
        return range(n)

    def steps(self, loader):
        return loader


def train(args, run, loader, net, sgd):
    path = os.path.join(args.folder, "steps.jsonl")
    n, times, begin = 0, [], time.monotonic()
    for _ in run.epochs(EPOCHS):
        for x, y in run.steps(loader):
            sgd.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            sgd.step()
            n, end = n + 1, time.monotonic()
            times.append(end - begin)
            begin = end
            if dist.get_rank() == 0:
                step = run.step if args.kind == "elastic" else n
                with open(path, "a", encoding="utf-8") as f:
                    f.write(json.dumps({"step": step, "ranks": dist.get_world_size()}) + "\n")
            if n == args.steps:
                return times


def main():
    args = parse()
    torch.set_num_threads(1)
    dist.init_process_group(args.backend)
    net, images, batch = open_net(args.net)
    net = DistributedDataParallel(net)
    sgd = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    loader = DataLoader(images, batch_size=batch, sampler=DistributedSampler(images))
    run = elastic.Run(net, sgd) if args.kind == "elastic" else Plain()
    times = train(args, run, loader, net, sgd)
    form = lockstep.torch.form()[0] if args.backend == "lockstep" else ""
    if dist.get_rank() == 0:
        print(f"median {statistics.median(times[len(times) // 4 :]):.6f} {form}", flush=True)


if __name__ == "__main__":
    main()
