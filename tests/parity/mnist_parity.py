#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mnist_parity.py BIN-DIR: the mnist program against torch DDP over gloo.

Same initial weights, same batches, 2 ranks, 50 steps of plain SGD; distances are L2 norms of each
tensor, relative.

  --lr 0.001  every parameter and running statistic within 1e-4 of torch's
  --lr 0.05   rounding grows by four orders of magnitude in 50 steps here, in torch as well, so that
              chance decides how far a single run gets: the distance of every tensor from torch in
              float64 must be at most 1.5 times that of torch in float32 (or of 1e-4, where that is
              closer) in the median of five runs with other weights

Batch norm's biases start at random values instead of 0, where a relative distance would compare
nothing but the rounding of sums that cancel. Exit 77: skipped, with a reason.
"""

import gzip
import os
import statistics
import subprocess
import sys
import tempfile

STEPS, RANKS, BATCH, BOUND = 50, 2, 100, 1e-4
SEEDS = (7, 8, 9, 10, 11)
DATA = "/usr/share/datasets/fashion-mnist"


def skip(why):
    print("skipped:", why)
    sys.exit(77)


try:
    import numpy as np
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
    from torch import nn
    from tensor_file import distance, read_safetensors, write_safetensors
except ImportError as error:
    skip(f"python3-torch and python3-numpy are needed ({error})")
if not os.path.isdir(DATA):
    skip("dataset-fashion-mnist is needed")


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
        return self.fc(self.layer2(self.layer1(x)).flatten(1))


def read_set(kind, offset):
    with gzip.open(f"{DATA}/train-{kind}-ubyte.gz") as f:
        return np.frombuffer(f.read(), np.uint8, offset=offset)


def initial_weights(seed):
    torch.manual_seed(seed)
    net = ConvNet()
    for bias in (net.layer1[1].bias, net.layer2[1].bias):
        nn.init.uniform_(bias, -0.5, 0.5)
    return net.state_dict()


def train_torch(rank, folder, lr, dtype, name):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous-{name}", rank=rank, world_size=RANKS
    )
    images = torch.from_numpy(
        read_set("images-idx3", 16).reshape(-1, 1, 28, 28).astype(np.float32) / 255
    ).to(dtype)
    labels = torch.from_numpy(read_set("labels-idx1", 8).astype(np.int64))
    net = ConvNet()
    net.load_state_dict(read_safetensors(f"{folder}/init.safetensors"))
    ddp = nn.parallel.DistributedDataParallel(net.to(dtype))
    sgd = torch.optim.SGD(ddp.parameters(), lr=lr)
    sampler = torch.utils.data.DistributedSampler(range(len(labels)), RANKS, rank, shuffle=False)
    order = torch.tensor(list(sampler))
    for step in range(STEPS):
        batch = order[step * BATCH:(step + 1) * BATCH]
        sgd.zero_grad()
        nn.functional.cross_entropy(ddp(images[batch]), labels[batch]).backward()
        sgd.step()
    if rank == 0:
        write_safetensors(f"{folder}/{name}.safetensors", net.state_dict())
    dist.barrier()
    dist.destroy_process_group()


def torch_result(folder, lr, dtype):
    name = f"torch-{lr}-{str(dtype).split('.')[-1]}"
    mp.spawn(train_torch, args=(folder, lr, dtype, name), nprocs=RANKS)
    return read_safetensors(f"{folder}/{name}.safetensors")


def lockstep_result(bin_dir, folder, lr):
    subprocess.run(
        [
            f"{bin_dir}/lockstep",
            "run",
            "--nproc-per-node",
            str(RANKS),
            f"{bin_dir}/mnist",
            "--data",
            DATA,
            "--init",
            f"{folder}/init.safetensors",
            "--save",
            f"{folder}/lockstep.safetensors",
            "--no-shuffle",
            "--steps",
            str(STEPS),
            "--batch-size",
            str(BATCH),
            "--lr",
            str(lr),
            "--momentum",
            "0",
            "--schedule",
            "constant",
        ],
        check=True,
        timeout=300,
    )
    return read_safetensors(f"{folder}/lockstep.safetensors")


def same_names(ours, theirs):
    assert sorted(ours) == sorted(theirs), f"names differ: {sorted(ours)} and {sorted(theirs)}"


def compare_directly(bin_dir, folder, start):
    ours, theirs = lockstep_result(bin_dir, folder, 0.001), torch_result(
        folder, 0.001, torch.float32
    )
    same_names(ours, theirs)
    good = True
    for name, want in theirs.items():
        apart, moved = distance(ours[name], want), distance(start[name], want)
        good = good and apart <= BOUND
        print(f"lr 0.001  {name:30} apart {apart:.1e}  moved {moved:.1e}")
    return good


def compare_with_float64(bin_dir, folder):
    ratios = {}
    for seed in SEEDS:
        write_safetensors(f"{folder}/init.safetensors", initial_weights(seed))
        ours = lockstep_result(bin_dir, folder, 0.05)
        theirs, exact = torch_result(folder, 0.05, torch.float32), torch_result(
            folder, 0.05, torch.float64
        )
        same_names(ours, exact)
        for name, want in exact.items():
            mine, torchs = distance(ours[name], want), distance(theirs[name], want)
            ratios.setdefault(name, []).append(max(mine, BOUND / 2) / max(torchs, BOUND / 2))
    good = True
    for name, values in ratios.items():
        median = statistics.median(values)
        good = good and median <= 1.5
        print(
            f"lr 0.05   {name:30} from float64, times torch's: "
            f"{' '.join(f'{v:.2f}' for v in values)}, median {median:.2f}"
        )
    return good


def main():
    with tempfile.TemporaryDirectory() as folder:
        start = initial_weights(SEEDS[0])
        write_safetensors(f"{folder}/init.safetensors", start)
        good = compare_directly(sys.argv[1], folder, start)
        good = compare_with_float64(sys.argv[1], folder) and good
    print("parity holds" if good else "parity is broken")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
