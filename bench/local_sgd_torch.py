# SPDX-License-Identifier: Apache-2.0
"""local_sgd_torch.py: a rank of PyTorch's rows of bench/local_sgd: the GPT-2 of step_torch.py, on
the text, with DistributedDataParallel over gloo.

    local_sgd_torch.py --text FILE --batch N --layers N --width N --heads N --tokens N --warmup N
                       --steps N [--powersgd RANK | --every H]

--powersgd: with powerSGD_hook. --every: post-local SGD, whose ranks take a mean of their parameters
every H steps. Rank 0 prints the seconds of --steps steps after --warmup, and the bytes that the
interface $GLOO_SOCKET_IFNAME has sent in them.
"""
import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer

from step_torch import GPT


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", required=True)
    for name in ("batch", "layers", "width", "heads", "tokens", "warmup", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--powersgd", type=int)
    parser.add_argument("--every", type=int)
    return parser.parse_args()


class Trainer:
    def __init__(self, args):
        self.args = args
        with open(args.text, "rb") as f:
            self.text = torch.frombuffer(bytearray(f.read()), dtype=torch.uint8)
        net = GPT(args.tokens, args.layers, args.heads, args.width)
        self.optimizer = torch.optim.AdamW(net.parameters(), weight_decay=0.1, fused=True)
        # PowerSGD on one bucket: on several over gloo its operations are in different orders on the
        # ranks, and PyTorch 2.15 ends with "Received data size doesn't match expected size".
        buckets = {"bucket_cap_mb": 4096} if args.powersgd else {}
        self.net = nn.parallel.DistributedDataParallel(
            net, gradient_as_bucket_view=True, **buckets
        )
        if args.powersgd:
            state = powerSGD_hook.PowerSGDState(
                None, matrix_approximation_rank=args.powersgd, start_powerSGD_iter=2
            )
            self.net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        if args.every:
            self._train_locally()

    def _train_locally(self):
        """Without gradients of other ranks from the first step on."""
        state = post_localSGD_hook.PostLocalSGDState(
            None, None, start_localSGD_iter=0, post_local_gradient_allreduce=False
        )
        self.net.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
        averager = PeriodicModelAverager(period=self.args.every, warmup_steps=0)
        self.optimizer = PostLocalSGDOptimizer(optim=self.optimizer, averager=averager)

    def run(self, n_steps):
        offsets = torch.arange(self.args.tokens + 1)
        for _ in range(n_steps):
            begins = torch.randint(len(self.text) - self.args.tokens, (self.args.batch, 1))
            rows = self.text[begins + offsets].long()
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.net(rows[:, :-1]), rows[:, 1:].flatten())
            loss.backward()
            self.optimizer.step()
        dist.barrier()


def sent():
    path = f"/sys/class/net/{os.environ['GLOO_SOCKET_IFNAME']}/statistics/tx_bytes"
    with open(path, encoding="ascii") as f:
        return int(f.read())


def main():
    args = parse()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())  # of the samples; DDP takes the parameters of rank 0
    trainer = Trainer(args)
    trainer.run(args.warmup)
    begin_s, begin_sent = time.perf_counter(), sent()
    trainer.run(args.steps)
    seconds, n_bytes = time.perf_counter() - begin_s, sent() - begin_sent
    if dist.get_rank() == 0:
        print(json.dumps({"torch": torch.__version__, "seconds": seconds, "sent": n_bytes}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
