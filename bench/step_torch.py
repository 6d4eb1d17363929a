#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""step_torch.py: the peer of convnet_step, resnet_step, gpt_step and tacotron2_step: the same
network, batch and optimizer in PyTorch, with batches in the memory of the device.

    step_torch.py [--net convnet|gpt|tacotron2|ARCH] [--batch N] [--side N] [--frames N] [--steps N]
                  [--warmup N] [--read-every N] [--threads N] [--device cpu|cuda]
                  [--precision fp32|tf32|bf16|fp16] [--compile MODE] [--plain] [--json]

ARCH is a name of torchvision. --frames is of tacotron2, the network of tests/parity. PyTorch runs
with channels_last (--plain disables it), on a GPU with cudnn.benchmark and fused SGD, with autocast
for bf16 and fp16 and a GradScaler for fp16; Adam is fused on the CPU, too. --compile passes the
network through torch.compile(mode=MODE). The loss is read after every --read-every steps. On the
CPU the environment of the caller sets OpenBLAS as libblas.so.3 and malloc options that keep large
blocks, see peer.py.
"""
import argparse
import contextlib
import importlib.util
import json
import os
import resource
import time

import torch
from torch import nn

LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}


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


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        n, t, d = x.shape
        q, k, v = (
            a.view(n, t, self.heads, -1).transpose(1, 2)
            for a in self.attn(self.ln_1(x)).split(d, 2)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(n, t, d))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """GPT-2 as that of gpt_step."""

    def __init__(self, context, layers=6, heads=6, width=384, vocab=256):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.h = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        return nn.functional.linear(self.ln_f(self.h(x)), self.wte.weight).flatten(0, 1)


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--net", default="resnet50")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--side", type=int)
    parser.add_argument("--frames", type=int, default=400)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--warmup", type=int)
    parser.add_argument("--read-every", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16", "fp16"), default="fp32")
    parser.add_argument("--compile", default="")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    # batch, side (of tacotron2: symbols), steps, warmup: those of the programs of Lockstep
    defaults = {
        "convnet": (100, 28, 200, 20),
        "gpt": (8, 256, 5, 2),
        "tacotron2": (16, 80, 3, 1),
    }.get(args.net, (16, 224, 5, 2))
    for name, value in zip(("batch", "side", "steps", "warmup"), defaults):
        if getattr(args, name) is None:
            setattr(args, name, value)
    return args


def load_tacotron2():
    path = os.path.join(os.path.dirname(__file__), "..", "tests", "parity", "tacotron2_torch.py")
    spec = importlib.util.spec_from_file_location("tacotron2_torch", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def images_of(args, layout):
    """Batches of images and their classes."""
    channels, classes, n = (1, 10, 8) if args.net == "convnet" else (3, 1000, 1)
    shape = (args.batch, channels, args.side, args.side)
    return [
        (
            [torch.rand(shape).to(args.device).contiguous(memory_format=layout)],
            torch.randint(0, classes, (args.batch,)).to(args.device),
        )
        for _ in range(n)
    ]


def sentences_of(args):
    """A batch of tacotron2: sentences of equal length, whose lengths and padding are full."""
    ids = torch.randint(1, 148, (args.batch, args.side))
    mels = torch.randn(args.batch, args.frames, 80) - 4
    lengths = [torch.full((args.batch,), n) for n in (args.side, args.frames)]
    return [([ids, lengths[0], mels, lengths[1]], (mels, torch.zeros(args.batch, args.frames)))]


class Trainer:
    def __init__(self, args, layout):
        gpu = args.device == "cuda"
        fused = {"fused": True} if gpu else {}
        self.criterion = nn.CrossEntropyLoss()
        self.clips = False
        if args.net == "gpt":
            net = GPT(args.side).to(args.device)
            ids = torch.randint(0, 256, (2, args.batch, args.side)).to(args.device)
            self.batches = [([ids[0]], ids[1].flatten())]
            self.optimizer = torch.optim.AdamW(net.parameters(), weight_decay=0.1, fused=True)
        elif args.net == "tacotron2":
            network = load_tacotron2()
            net = network.Tacotron2().train()
            self.batches = sentences_of(args)
            self.criterion = lambda outputs, targets: network.loss_of(outputs, *targets)
            self.optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=1e-6,
                                              fused=True)
            self.clips = True
        else:
            if args.net == "convnet":
                net = ConvNet()
            else:
                import torchvision

                net = getattr(torchvision.models, args.net)(weights=None)
            net = net.to(args.device, memory_format=layout)
            self.batches = images_of(args, layout)
            self.optimizer = torch.optim.SGD(net.parameters(), lr=0.01,
                                             momentum=0 if args.net == "convnet" else 0.9, **fused)
        self.parameters = list(net.parameters())
        self.net = torch.compile(net, mode=args.compile) if args.compile else net
        self.low = LOW.get(args.precision)
        self.scaler = torch.amp.GradScaler(args.device) if args.precision == "fp16" else None
        self.device = args.device

    def step(self, i):
        samples, targets = self.batches[i % len(self.batches)]
        self.optimizer.zero_grad(set_to_none=True)
        low = torch.autocast(self.device, dtype=self.low) if self.low else contextlib.nullcontext()
        with low:
            loss = self.criterion(self.net(*samples), targets)
        if self.scaler is None:
            loss.backward()
            if self.clips:
                nn.utils.clip_grad_norm_(self.parameters, 1.0)
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            if self.clips:
                self.scaler.unscale_(self.optimizer)
                nn.utils.clip_grad_norm_(self.parameters, 1.0)
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return loss


def peak_mib(device):
    if device == "cuda":
        return torch.cuda.max_memory_reserved() >> 20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def version(args):
    where = f"{args.threads} thread"
    if args.device == "cuda":
        cudnn = torch.backends.cudnn.version()
        where = f"{torch.cuda.get_device_name()} {args.precision} cudnn {cudnn}"
    layout = "plain" if args.plain else "channels_last"
    compiled = f" compile={args.compile}" if args.compile else ""
    return f"torch {torch.__version__} {layout} {where}{compiled}"


def measure(args, trainer):
    """The milliseconds of a step: of each, or the mean of each --read-every steps."""
    times = []
    done = 0
    while done < args.warmup + args.steps:
        begin = time.perf_counter()
        for i in range(done, done + args.read_every):
            loss = trainer.step(i)
        value = loss.item()
        if done >= args.warmup:
            times.append(1e3 * (time.perf_counter() - begin) / args.read_every)
        done += args.read_every
    return sorted(times), value


def main():
    args = parse()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = args.precision != "fp32"
    torch.backends.cuda.matmul.allow_tf32 = args.precision != "fp32"
    layout = torch.contiguous_format if args.plain else torch.channels_last
    times, loss = measure(args, Trainer(args, layout))
    median = times[len(times) // 2]
    rate = 1e3 * args.batch / median
    if args.json:
        print(
            json.dumps(
                {
                    "name": "torch",
                    "samples_per_s": round(rate, 2),
                    "step_ms": round(median, 4),
                    "best_ms": round(times[0], 4),
                    "batch": args.batch,
                    "side": args.side,
                    "steps": args.steps,
                    "peak_mib": peak_mib(args.device),
                    "device": version(args),
                    "loss": round(loss, 4),
                }
            )
        )
    else:
        print(
            f"torch     {rate:.2f} samples/s, median step {median:.2f} ms (best {times[0]:.2f}), "
            f"batch {args.batch}, peak {peak_mib(args.device)} MiB, {version(args)}"
        )


if __name__ == "__main__":
    main()
