# SPDX-License-Identifier: Apache-2.0
"""A DDP script as users write it; argument: the backend. Prints a hash of the parameters."""
import hashlib
import sys

import torch
import torch.distributed as dist


def train():
    torch.manual_seed(dist.get_rank())
    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    model = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for _ in range(10):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 16)).square().mean()
        loss.backward()
        optimizer.step()
    data = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    digest = hashlib.sha256(data).hexdigest()
    seen = [None] * dist.get_world_size()
    dist.all_gather_object(seen, digest)
    assert len(set(seen)) == 1, seen
    group = dist.distributed_c10d._get_default_group()
    backend = group._get_backend(torch.device("cpu")) if hasattr(group, "_get_backend") else group
    # In one write: torchrun starts Python unbuffered, where print() has one for each word.
    sys.stdout.write(f"parameters {digest} {type(backend).__name__}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1] == "lockstep":
        import lockstep.torch  # noqa: F401
    dist.init_process_group(sys.argv[1])
    train()
    dist.destroy_process_group()
