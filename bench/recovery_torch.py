# SPDX-License-Identifier: Apache-2.0
"""recovery_torch.py FOLDER: the ConvNet of examples/mnist.c on random data in PyTorch's DDP with
gloo, for bench/recovery. Rank 0 saves a checkpoint after each step, from which all ranks go on
after a restart, and writes a line of FOLDER/steps.jsonl for each step."""
import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def block(n_in, n_out):
    return nn.Sequential(
        nn.Conv2d(n_in, n_out, 5, padding=2), nn.BatchNorm2d(n_out), nn.ReLU(), nn.MaxPool2d(2)
    )


def network():
    return nn.Sequential(block(1, 16), block(16, 32), nn.Flatten(), nn.Linear(1568, 10))


def batch(seed):
    torch.manual_seed(seed)
    return torch.rand(12, 1, 28, 28), torch.randint(0, 10, (12,))


def main():
    folder = sys.argv[1]
    saved = os.path.join(folder, "state.pt")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    net = network()
    ddp = DistributedDataParallel(net)
    sgd = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    step = 0
    if os.path.exists(saved):
        state = torch.load(saved, weights_only=True)
        net.load_state_dict(state["net"])
        sgd.load_state_dict(state["sgd"])
        step = state["step"]
    while True:
        x, y = batch(step * dist.get_world_size() + dist.get_rank())
        sgd.zero_grad()
        nn.functional.cross_entropy(ddp(x), y).backward()
        sgd.step()
        step += 1
        if dist.get_rank() == 0:
            torch.save({"net": net.state_dict(), "sgd": sgd.state_dict(), "step": step},
                       saved + ".new")
            os.replace(saved + ".new", saved)
            with open(os.path.join(folder, "steps.jsonl"), "a", encoding="utf-8") as f:
                f.write(json.dumps({"step": step}) + "\n")


if __name__ == "__main__":
    main()
