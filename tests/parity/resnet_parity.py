#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""resnet_parity.py PROGRAM ARCH SIDE ROWS: training forwards and backwards of a ResNet, ours
against torchvision's.

Same weights, same batches: each tensor must be no farther (L2 norm) from PyTorch in float64 than
twice what PyTorch in float32 is; each side's median over the batches counts.

  torchvision's initial weights   logits, loss and running statistics. Gradients are only compared
                                  as a whole (the median over all tensors): activations within a
                                  rounding error of 0 are cut by the ReLU on one side and not on
                                  the other, now here, now there, and each moves all gradients
                                  before it by a thousand rounding errors.
  channels that are on or off     every gradient as well. Shifts keep activations away from 0: of
                                  each batch norm some channels are always cut and the others
                                  never, so that nothing hangs on the last bit.

The exact gradient of a batch norm's bias is 0 where a convolution without padding and another batch
norm follow, which removes whatever the bias adds: all such biases of ResNet-50 in the second
setting. What float32 gives there is rounding alone, on both sides, and has no relative error. It is
compared with the sum of |dy|, the terms that cancel.

The weights are what torchvision saves; what we save is loaded by torchvision again, strictly. Exit
77: skipped, with a reason.
"""

import os
import statistics
import subprocess
import sys
import tempfile

try:
    import torch
    import torchvision
except ImportError as error:
    print(f"skipped: python3-torch and python3-torchvision are needed ({error})")
    sys.exit(77)
from tensor_file import read_safetensors, write_safetensors  # noqa: E402

BATCHES = 3
# A few roundings of float32: smaller distances, as of a counter or of one number, do not count.
ROUNDING = 1e-6
ZERO = 1e-9  # of the sum of its terms: a gradient in float64 below that is 0


def watch_biases(net, terms):
    """terms["grad.NAME"] becomes the norm of the sums of |dy| for each batch norm's bias."""
    for name, m in net.named_modules():
        if isinstance(m, torch.nn.BatchNorm2d):
            def watch(module, inputs, y, name=f"grad.{name}.bias"):
                def note(dy):
                    terms[name] = dy.abs().sum((0, 2, 3)).norm().item()

                y.register_hook(note)
                return y.clone()  # the ReLU behind it works in place
            m.register_forward_hook(watch)


def torch_result(arch, weights, images, labels, dtype, terms):
    net = getattr(torchvision.models, arch)(weights=None)
    net.load_state_dict(weights)
    net = net.to(dtype).train()
    watch_biases(net, terms)
    logits = net(images.to(dtype))
    loss = torch.nn.functional.cross_entropy(logits, labels)
    loss.backward()
    result = {"logits": logits.detach(), "loss": loss.detach()}
    result.update({f"grad.{name}": p.grad for name, p in net.named_parameters()})
    return result, net.state_dict()


def lockstep_result(program, arch, folder, weights, images, labels):
    write_safetensors(f"{folder}/weights", weights)
    write_safetensors(f"{folder}/batch", {"images": images, "labels": labels})
    subprocess.run(
        [program, arch] + [f"{folder}/{name}" for name in ("weights", "batch", "result", "state")],
        check=True,
        timeout=300,
        env={**os.environ, "LOCKSTEP_THREADS": "1"},
    )
    return read_safetensors(f"{folder}/result"), read_safetensors(f"{folder}/state")


def distances(result, exact, terms):
    """The error of each tensor as a share of its norm, or of its terms where these cancel to 0."""
    assert list(result) == list(exact), f"names differ: {set(result) ^ set(exact)}"
    out = {}
    for name, want in exact.items():
        error = (result[name].double() - want.double()).norm().item()
        norm = want.double().norm().item()
        is_zero = norm < ZERO * terms.get(name, 0)
        out[name] = error / max(terms[name] if is_zero else norm, 1e-30)
    return out


def one_batch(program, arch, folder, weights, images, labels):
    """The distances from float64 of our results and of PyTorch's."""
    ours, our_state = lockstep_result(program, arch, folder, weights, images, labels)
    terms = {}
    theirs, their_state = torch_result(arch, weights, images, labels, torch.float32, {})
    exact, exact_state = torch_result(arch, weights, images, labels, torch.float64, terms)
    getattr(torchvision.models, arch)(weights=None).load_state_dict(our_state, strict=True)
    return ({**distances(ours, exact, terms), **distances(our_state, exact_state, {})},
            {**distances(theirs, exact, terms), **distances(their_state, exact_state, {})})


def on_or_off(net):
    """Every 8th channel between blocks and every 4th inside of one is cut, the others never are."""
    for name, m in net.named_modules():
        if not isinstance(m, torch.nn.BatchNorm2d):
            continue
        ends_block = name.endswith("downsample.1") or not hasattr(
            net.get_submodule(name.rpartition(".")[0]), "conv" + str(int(name[-1]) + 1)
        )
        channel = torch.arange(m.num_features)
        with torch.no_grad():
            m.weight.uniform_(0.3, 0.6)
            m.bias.uniform_(3, 4)
            m.bias[channel % (8 if ends_block else 4) == 0] = -100 if ends_block else -4


def run_batches(program, arch, weights, side, rows):
    """Each side's median distance of each tensor."""
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(BATCHES):
            images, labels = torch.randn(rows, 3, side, side), torch.randint(0, 1000, (rows,))
            results.append(one_batch(program, arch, folder, weights, images, labels))
    return {
        name: [statistics.median(r[i][name] for r in results) for i in range(2)]
        for name in results[0][0]
    }


def judge(what, pairs, names):
    """How many of the named tensors are too far away."""
    ratios = {name: ours / max(theirs, ROUNDING) for name, (ours, theirs) in pairs.items()}
    far = [name for name in names if not ratios[name] <= 2]
    for name in far:
        print(f"too far: {name}: lockstep {pairs[name][0]:.2e}, torch {pairs[name][1]:.2e}")
    print(
        f"{what}: distance from float64 as a multiple of PyTorch's: "
        f"median {statistics.median(ratios.values()):.2f}, "
        f"largest of "
        f"{len(names)} tensors {max(ratios[name] for name in names):.2f}"
    )
    return len(far) + (statistics.median(ratios.values()) > 2)


def main():
    program, arch = sys.argv[1], sys.argv[2]
    side, rows = [int(a) for a in sys.argv[3:5]]
    torch.manual_seed(11)
    net = getattr(torchvision.models, arch)(weights=None)
    pairs = run_batches(program, arch, net.state_dict(), side, rows)
    far = judge(
        f"{arch}, initial weights", pairs, [name for name in pairs if not name.startswith("grad.")]
    )
    on_or_off(net)
    pairs = run_batches(program, arch, net.state_dict(), side, rows)
    far += judge(f"{arch}, channels on or off", pairs, list(pairs))
    sys.exit(1 if far else 0)


if __name__ == "__main__":
    main()
