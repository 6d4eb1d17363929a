#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tape_torch.py: the peer of tape_overhead: the same chain of operators on tensors of 4 elements in
PyTorch, forward and backward, in ns an operator.

    tape_torch.py [--operators N] [--repetitions N] [--json]

One thread; the gradients are set to None before each forward.
"""
import argparse
import json
import time

import torch


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--operators", type=int, default=1000)
    parser.add_argument("--repetitions", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def run_once(x, w, operators):
    """The nanoseconds of a forward and of a backward."""
    begin = time.perf_counter_ns()
    x.grad = None
    w.grad = None
    y = x
    for i in range(operators):
        y = torch.relu(y) if i % 2 == 0 else y + x
    y = torch.nn.functional.linear(y, w)
    middle = time.perf_counter_ns()
    y.backward()
    return middle - begin, time.perf_counter_ns() - middle


def main():
    args = parse()
    torch.set_num_threads(1)
    x = torch.tensor([[1.0, -1.0, 2.0, -2.0]], requires_grad=True)
    w = torch.zeros(1, 4, requires_grad=True)
    for _ in range(3):
        run_once(x, w, args.operators)
    times = [run_once(x, w, args.operators) for _ in range(args.repetitions)]
    forward, backward = (sorted(t / args.operators for t in side) for side in zip(*times))
    result = {
        "name": "torch",
        "forward_ns": round(forward[len(forward) // 2], 1),
        "backward_ns": round(backward[len(backward) // 2], 1),
        "best_forward_ns": round(forward[0], 1),
        "best_backward_ns": round(backward[0], 1),
        "operators": args.operators,
        "device": f"torch {torch.__version__} 1 thread",
    }
    if args.json:
        print(json.dumps(result))
        return
    print(
        f"an operator: forward {result['forward_ns']:.0f} ns, backward "
        f"{result['backward_ns']:.0f} ns (best {result['best_forward_ns']:.0f} and "
        f"{result['best_backward_ns']:.0f}; {args.operators} operators; {result['device']})"
    )


if __name__ == "__main__":
    main()
