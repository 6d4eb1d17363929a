#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mlp_torch.py: the peer of mlp_arrays: the same MLP, data, batches and SGD in PyTorch.

    mlp_torch.py [--batch N] [--epochs N] [--loader] [--json]

One thread. Batches are rows of the tensors, by a random permutation of each epoch; with --loader a
DataLoader over a TensorDataset makes them, as programs usually do.
"""
import argparse
import json
import time

import torch
from torch import nn

SAMPLES = 4096


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--loader", action="store_true")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def data():
    i = torch.arange(SAMPLES)
    x = torch.stack([(i % 64) / 32 - 1, (i // 64) / 32 - 1], dim=1)
    return x, (x[:, 0] * x[:, 1] > 0).long()


def batches(args, x, y):
    if args.loader:
        dataset = torch.utils.data.TensorDataset(x, y)
        return torch.utils.data.DataLoader(dataset, batch_size=args.batch, shuffle=True)
    return ((x[rows], y[rows]) for rows in torch.randperm(SAMPLES).split(args.batch))


def main():
    args = parse()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y = data()
    net = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    times = []
    for _ in range(args.epochs + 1):
        begin = time.perf_counter()
        for images, targets in batches(args, x, y):
            optimizer.zero_grad(set_to_none=True)
            criterion(net(images), targets).backward()
            optimizer.step()
        times.append(time.perf_counter() - begin)
    steps = -(-SAMPLES // args.batch)
    times = [1e6 * t / steps for t in times[1:]]  # the first epoch allocates memory
    result = {
        "name": "torch",
        "step_us": round(sum(times) / len(times), 2),
        "best_us": round(min(times), 2),
        "batch": args.batch,
        "device": f"torch {torch.__version__} 1 thread",
    }
    if args.json:
        print(json.dumps(result))
        return
    print(
        f"a step: {result['step_us']:.1f} us (best epoch {result['best_us']:.1f} us; "
        f"batches of {args.batch}; {result['device']})"
    )


if __name__ == "__main__":
    main()
