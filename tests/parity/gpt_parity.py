#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpt_parity.py PROGRAM: a training forward and backward of GPT-2, ours against PyTorch's.

Same weights, same batches: logits, loss and every gradient must be no farther (L2 norm) from
PyTorch in float64 than twice what PyTorch in float32 is; each side's median over the batches
counts. The weights have the names and shapes of the files of Hugging Face, with and without the
prefix of GPT2LMHeadModel, and come back from our files unchanged. The network here is written with
torch alone: Conv1D (in, out), GELU by tanh, LayerNorm before each part, logits by the embedding.

Exit 77: skipped, with a reason.
"""

import os
import statistics
import subprocess
import sys
import tempfile

try:
    import torch
except ImportError as error:
    print(f"skipped: python3-torch is needed ({error})")
    sys.exit(77)
from tensor_file import distance, read_safetensors, write_safetensors  # noqa: E402

BATCHES = 3
ROUNDING = 1e-6  # a few roundings of float32: smaller distances do not count
LAYERS, HEADS, WIDTH, CONTEXT, VOCAB = 3, 4, 48, 32, 101
ROWS, LENGTH = 4, 24


def shapes(prefix):
    """Names and shapes in the order of the files."""
    d = WIDTH
    yield f"{prefix}wte.weight", (VOCAB, d)
    yield f"{prefix}wpe.weight", (CONTEXT, d)
    for i in range(LAYERS):
        for part, size in (
            ("ln_1", (d,)),
            ("attn.c_attn", (d, 3 * d)),
            ("attn.c_proj", (d, d)),
            ("ln_2", (d,)),
            ("mlp.c_fc", (d, 4 * d)),
            ("mlp.c_proj", (4 * d, d)),
        ):
            yield f"{prefix}h.{i}.{part}.weight", size
            yield f"{prefix}h.{i}.{part}.bias", size[-1:]
    yield f"{prefix}ln_f.weight", (d,)
    yield f"{prefix}ln_f.bias", (d,)


def make_weights(prefix, scale):
    """As after some training: biases are not 0, and attention is not uniform."""
    weights = {}
    for name, size in shapes(prefix):
        weights[name] = torch.randn(size) * scale
        if ".ln_" in f".{name}" and name.endswith("weight"):
            weights[name] += 1
    return weights


def forward(w, prefix, ids):
    def norm(x, name):
        return torch.nn.functional.layer_norm(
            x, (WIDTH,), w[f"{prefix}{name}.weight"], w[f"{prefix}{name}.bias"]
        )

    def conv1d(x, name):
        return x @ w[f"{prefix}{name}.weight"] + w[f"{prefix}{name}.bias"]

    def attend(x):
        n, t, _ = x.shape
        q, k, v = (a.view(n, t, HEADS, -1).transpose(1, 2) for a in x.split(WIDTH, 2))
        scores = q @ k.transpose(2, 3) / (WIDTH // HEADS) ** 0.5
        later = torch.ones(t, t, dtype=torch.bool).triu(1)
        y = scores.masked_fill(later, -torch.inf).softmax(3) @ v
        return y.transpose(1, 2).reshape(n, t, WIDTH)

    x = w[f"{prefix}wte.weight"][ids] + w[f"{prefix}wpe.weight"][: ids.shape[1]]
    for i in range(LAYERS):
        h = f"h.{i}."
        y = attend(conv1d(norm(x, f"{h}ln_1"), f"{h}attn.c_attn"))
        x = x + conv1d(y, f"{h}attn.c_proj")
        y = conv1d(norm(x, f"{h}ln_2"), f"{h}mlp.c_fc")
        y = torch.nn.functional.gelu(y, approximate="tanh")
        x = x + conv1d(y, f"{h}mlp.c_proj")
    return (norm(x, "ln_f") @ w[f"{prefix}wte.weight"].T).flatten(0, 1)


def torch_result(weights, prefix, ids, targets, dtype):
    w = {name: t.detach().to(dtype).clone().requires_grad_() for name, t in weights.items()}
    logits = forward(w, prefix, ids)
    loss = torch.nn.functional.cross_entropy(logits, targets.flatten())
    loss.backward()
    return {
        "logits": logits.detach(),
        "loss": loss.detach(),
        **{f"grad.{name}": t.grad for name, t in w.items()},
    }


def lockstep_result(program, folder, weights, prefix, ids, targets):
    write_safetensors(f"{folder}/weights", weights)
    write_safetensors(f"{folder}/batch", {"ids": ids, "targets": targets})
    files = [f"{folder}/{name}" for name in ("weights", "batch", "result", "state")]
    subprocess.run(
        [program, prefix, str(LAYERS), str(HEADS)] + files,
        check=True,
        timeout=300,
        env={**os.environ, "LOCKSTEP_THREADS": "1"},
    )
    state = read_safetensors(f"{folder}/state")
    assert list(state) == list(weights), "names or their order differ"
    assert all(torch.equal(state[name], t) for name, t in weights.items()), "weights differ"
    return read_safetensors(f"{folder}/result")


def one_batch(program, folder, prefix, scale):
    """The distances from float64 of our results and of PyTorch's."""
    weights = make_weights(prefix, scale)
    ids = torch.randint(0, VOCAB, (ROWS, LENGTH))
    targets = torch.randint(0, VOCAB, (ROWS, LENGTH))
    ours = lockstep_result(program, folder, weights, prefix, ids, targets)
    theirs = torch_result(weights, prefix, ids, targets, torch.float32)
    exact = torch_result(weights, prefix, ids, targets, torch.float64)
    assert set(ours) == set(exact), f"names differ: {set(ours) ^ set(exact)}"
    return {
        name: (distance(ours[name], want), distance(theirs[name], want))
        for name, want in exact.items()
    }


def compare(program, prefix, scale):
    """How many tensors are too far away."""
    with tempfile.TemporaryDirectory() as folder:
        batches = [one_batch(program, folder, prefix, scale) for _ in range(BATCHES)]
    far, ratios = 0, []
    for name in batches[0]:
        ours, theirs = (statistics.median(b[name][i] for b in batches) for i in range(2))
        ratios.append(ours / max(theirs, ROUNDING))
        if not ratios[-1] <= 2:
            print(f"too far: {name}: lockstep {ours:.2e}, torch {theirs:.2e}")
            far += 1
    print(
        f"prefix {prefix!r}, weights of deviation {scale}: distance from float64 as a multiple of "
        f"PyTorch's: median {statistics.median(ratios):.2f}, largest of {len(ratios)} tensors "
        f"{max(ratios):.2f}"
    )
    return far


def main():
    torch.manual_seed(17)
    far = sum(
        compare(sys.argv[1], prefix, scale)
        for prefix in ("", "transformer.")
        for scale in (0.02, 0.2)
    )
    sys.exit(1 if far else 0)


if __name__ == "__main__":
    main()
