# SPDX-License-Identifier: Apache-2.0
"""The last line of the recipes' programs."""
import torch
import torch.distributed as dist


def show(n_ranks, value):
    """Prints the number of ranks, a result, and what the group is."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    print(f"end {n_ranks} {value:.6f} {type(backend).__name__}", flush=True)
