#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""resnet_torch.py: the peer of resnet_step: the same network, batch and SGD in PyTorch, with
batches in memory. The network is torchvision's.

    resnet_torch.py [--arch NAME] [--batch N] [--side N] [--steps N] [--warmup N]
                    [--threads N] [--plain] [--json]

PyTorch runs with channels_last (--plain disables it). The environment of the caller sets OpenBLAS
as libblas.so.3 and malloc options that keep large blocks, see compare_resnet.
"""
import argparse
import json
import resource
import time

import torch
import torchvision
from torch import nn


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--arch", default="resnet50")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main():
    args = parse()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    layout = torch.contiguous_format if args.plain else torch.channels_last
    net = getattr(torchvision.models, args.arch)(weights=None).to(memory_format=layout)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    images = torch.rand(args.batch, 3, args.side, args.side).contiguous(memory_format=layout)
    targets = torch.randint(0, 1000, (args.batch,))
    times = []
    for _ in range(args.warmup + args.steps):
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = criterion(net(images), targets)
        loss.backward()
        optimizer.step()
        value = loss.item()
        times.append(1e3 * (time.perf_counter() - begin))
    times = sorted(times[args.warmup :])
    median = times[len(times) // 2]
    rate = 1e3 * args.batch / median
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    layout = 'plain' if args.plain else 'channels_last'
    version = f"torch {torch.__version__} {layout} {args.threads} thread"
    if args.json:
        print(
            json.dumps(
                {
                    "name": "torch",
                    "samples_per_s": round(rate, 2),
                    "step_ms": round(median, 3),
                    "best_ms": round(times[0], 3),
                    "batch": args.batch,
                    "side": args.side,
                    "steps": args.steps,
                    "peak_mib": peak,
                    "device": version,
                    "loss": round(value, 4),
                }
            )
        )
    else:
        print(
            f"torch     {rate:.2f} samples/s, median step {median:.2f} ms (best {times[0]:.2f}), "
            f"batch {args.batch} of {args.side}x{args.side}, peak {peak} MiB, {version}"
        )


if __name__ == "__main__":
    main()
