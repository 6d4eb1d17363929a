#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tacotron2_torch.py: the peer of tacotron2_step: the same training step in PyTorch, with the
network of tests/parity/tacotron2_torch.py.

    tacotron2_torch.py [--batch N] [--ids N] [--frames N] [--steps N] [--warmup N] [--threads N]
"""
import argparse
import importlib.util
import json
import os
import resource
import statistics
import time

import torch

HERE = os.path.dirname(os.path.abspath(__file__))


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--ids", type=int, default=80)
    parser.add_argument("--frames", type=int, default=400)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")  # as tacotron2_step; there is no other form
    return parser.parse_args()


def load_network():
    path = os.path.join(HERE, "..", "tests", "parity", "tacotron2_torch.py")
    spec = importlib.util.spec_from_file_location("tacotron2_network", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main():
    args = parse()
    torch.set_num_threads(args.threads)
    network = load_network()
    net = network.Tacotron2().train()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=1e-6)
    ids = torch.full((args.batch, args.ids), 5)
    id_lengths = torch.full((args.batch,), args.ids)
    mels = torch.full((args.batch, args.frames, 80), -4.0)
    mel_lengths = torch.full((args.batch,), args.frames)
    gates = torch.zeros(args.batch, args.frames)
    times = []
    for i in range(args.warmup + args.steps):
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        network.loss_of(net(ids, id_lengths, mels, mel_lengths), mels, gates).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        if i >= args.warmup:
            times.append((time.perf_counter() - begin) * 1e3)
    median = statistics.median(times)
    print(
        json.dumps(
            {
                "name": "torch",
                "median_ms": round(median, 1),
                "best_ms": round(min(times), 1),
                "frames_per_s": round(args.batch * args.frames * 1e3 / median, 1),
                "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
                "device": f"torch {torch.__version__} {args.threads} thread",
            }
        )
    )


if __name__ == "__main__":
    main()
