#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""convnet_torch.py: the peer of convnet_step: the same network, batch and SGD in PyTorch, with
batches in memory.

    convnet_torch.py [--batch N] [--steps N] [--warmup N] [--threads N] [--plain] [--json]

PyTorch runs with channels_last (--plain disables it). The environment of the caller sets OpenBLAS
as libblas.so.3 and malloc options that keep large blocks, see compare_convnet.
"""
import argparse
import json
import time

import torch
from torch import nn


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1 = nn.Sequential(
            nn.Conv2d(1, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.layer2 = nn.Sequential(
            nn.Conv2d(16, 32, 5, padding=2), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.fc = nn.Linear(7 * 7 * 32, 10)

    def forward(self, x):
        x = self.layer2(self.layer1(x))
        return self.fc(x.reshape(x.size(0), -1))


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main():
    args = parse()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    layout = torch.contiguous_format if args.plain else torch.channels_last
    net = ConvNet().to(memory_format=layout)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()
    images = [torch.rand(args.batch, 1, 28, 28).contiguous(memory_format=layout) for _ in range(8)]
    targets = [torch.randint(0, 10, (args.batch,)) for _ in range(8)]
    times = []
    for i in range(args.warmup + args.steps):
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = criterion(net(images[i % 8]), targets[i % 8])
        loss.backward()
        optimizer.step()
        value = loss.item()
        times.append(1e3 * (time.perf_counter() - begin))
    times = sorted(times[args.warmup :])
    median = times[len(times) // 2]
    rate = 1e3 * args.batch / median
    layout = 'plain' if args.plain else 'channels_last'
    version = f"torch {torch.__version__} {layout} {args.threads} thread"
    if args.json:
        print(
            json.dumps(
                {
                    "name": "torch",
                    "samples_per_s": round(rate, 1),
                    "step_ms": round(median, 3),
                    "best_ms": round(times[0], 3),
                    "batch": args.batch,
                    "steps": args.steps,
                    "device": version,
                    "loss": round(value, 4),
                }
            )
        )
    else:
        print(
            f"torch     {rate:.0f} samples/s, median step {median:.2f} ms (best {times[0]:.2f}), "
            f"batch {args.batch}, {version}"
        )


if __name__ == "__main__":
    main()
