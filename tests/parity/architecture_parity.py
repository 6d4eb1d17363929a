#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""architecture_parity.py PROGRAM ARCH SIDE ROWS: an architecture of models/ against torchvision's.

  initial values   each parameter: constants are equal; of random ones mean, deviation and kurtosis
                   agree.
  dropout          the rates of dropout and of stochastic depth are the same, in the same order.
  one step         without dropout, from torchvision's weights moved by noise: logits, loss and
                   running statistics are no farther (L2 norm) from PyTorch in float64 than 4 times
                   what PyTorch in float32 is. Gradients are within 10 % of those in float64, and
                   their median within 2 %, or 4 times PyTorch's largest and median in float32: a
                   ReLU cuts activations within a rounding error of 0 on one side and not on the
                   other.
  weights          what torchvision saves is loaded strictly, and what we save torchvision loads
                   strictly.

Exit 77: skipped, with a reason.
"""

import os
import subprocess
import statistics
import sys
import tempfile
import warnings
from collections import OrderedDict

try:
    import torch
    import torchvision
except ImportError as error:
    print(f"skipped: python3-torch and python3-torchvision are needed ({error})")
    sys.exit(77)
from architecture_table import WITHOUT_AUXILIARY  # noqa: E402
from tensor_file import (  # noqa: E402
    compare_initial,
    distance,
    read_safetensors,
    shape_of,
    write_safetensors,
)

CLASSES = 1000
ROUNDING = 1e-6
NOISE = 0.02
DROPOUT = (torch.nn.Dropout, torchvision.ops.StochasticDepth)


def build(arch, side):
    options = {
        **WITHOUT_AUXILIARY.get(arch, {}),
        **({"image_size": side} if arch.startswith("vit") else {}),
    }
    options.pop("init_weights", None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return getattr(torchvision.models, arch)(weights=None, **options)


def load(net, state):
    """Strictly; MNASNet wants the version that state_dict() notes beside the tensors, which files
    of safetensors have no place for."""
    state = OrderedDict(state)
    state._metadata = net.state_dict()._metadata
    net.load_state_dict(state, strict=True)


def lockstep(program, arch, folder, weights):
    names = ["batch", "result", "state"]
    done = subprocess.run(
        [program, arch, weights] + [f"{folder}/{name}" for name in names],
        check=True,
        timeout=300,
        text=True,
        stdout=subprocess.PIPE,
        env={**os.environ, "LOCKSTEP_THREADS": "1"},
    )
    return [float(rate) for rate in done.stdout.split()]


def check_initial(program, arch, folder, net):
    rates = lockstep(program, arch, folder, "-")
    unused = [
        m.stochastic_depth
        for m in net.modules()
        if not getattr(m, "use_res_connect", True) and hasattr(m, "stochastic_depth")
    ]
    want = [m.p for m in net.modules() if isinstance(m, DROPOUT) and m.p > 0 and m not in unused]
    assert [round(r, 6) for r in rates] == [
        round(r, 6) for r in want
    ], f"dropout: {rates}, not {want}"
    ours, theirs = read_safetensors(f"{folder}/state"), net.state_dict()
    assert list(ours) == list(theirs), f"names differ: {set(ours) ^ set(theirs)}"
    wrong = [name for name, t in theirs.items() if not compare_initial(name, ours[name], t)]
    assert (
        not wrong
    ), f"initial values differ: {[(n, shape_of(ours[n]), shape_of(theirs[n])) for n in wrong]}"


def torch_step(arch, side, weights, images, labels, dtype):
    net = build(arch, side)
    load(net, weights)
    for m in net.modules():
        if isinstance(m, DROPOUT):
            m.p = 0.0
    net = net.to(dtype).train()
    logits = net(images.to(dtype))
    loss = torch.nn.functional.cross_entropy(logits, labels)
    loss.backward()
    values = {"logits": logits.detach(), "loss": loss.detach()}
    values.update((name, b.clone()) for name, b in net.named_buffers())
    return values, {name: p.grad for name, p in net.named_parameters()}


def errors(gradients, exact):
    """Distances from the exact ones; those of nothing but rounding errors are measured against the
    largest."""
    least = 1e-4 * max(g.norm().item() for g in exact.values())
    return {
        name: (gradients[name].double() - g).norm().item() / max(g.norm().item(), least)
        for name, g in exact.items()
    }


def compare_values(ours, theirs, exact):
    wrong = []
    logits = distance(theirs["logits"], exact["logits"])
    for name, want in exact.items():
        far = distance(ours[name], want)
        # The error of one number may be small by chance.
        bound = 4 * max(distance(theirs[name], want), logits if want.numel() == 1 else 0, ROUNDING)
        if not far <= bound:
            wrong.append(f"{name}: {far:.2e} from float64, bound {bound:.2e}")
    return wrong


def compare_gradients(ours, theirs, exact):
    far, their = errors(ours, exact), errors(theirs, exact)
    bound, median_bound = max(0.1, 4 * max(their.values())), max(
        0.02, 4 * statistics.median(their.values())
    )
    median = statistics.median(far.values())
    print(
        f"gradients: median {median:.1e}, torch {statistics.median(their.values()):.1e}; "
        f"largest {max(far.values()):.1e}, torch "
        f"{max(their.values()):.1e}"
    )
    return [
        f"gradient of {name}: {d:.2e} from float64" for name, d in far.items() if not d <= bound
    ] + ([] if median <= median_bound else [f"gradients: median {median:.2e} from float64"])


def check_step(program, arch, side, rows, folder, net):
    with torch.no_grad():
        for p in net.parameters():
            p.add_(NOISE * torch.randn_like(p))
    weights = {name: t.clone() for name, t in net.state_dict().items()}
    images, labels = torch.randn(rows, 3, side, side), torch.randint(0, CLASSES, (rows,))
    write_safetensors(f"{folder}/weights", weights)
    write_safetensors(f"{folder}/batch", {"images": images, "labels": labels})
    lockstep(program, arch, folder, f"{folder}/weights")
    ours, state = read_safetensors(f"{folder}/result"), read_safetensors(f"{folder}/state")
    load(net, state)
    theirs, their_gradients = torch_step(arch, side, weights, images, labels, torch.float32)
    exact, exact_gradients = torch_step(arch, side, weights, images, labels, torch.float64)
    print(f"{arch}: logits {distance(ours['logits'], exact['logits']):.1e} from float64, torch "
          f"{distance(theirs['logits'], exact['logits']):.1e}")
    wrong = compare_values({**state, **ours}, theirs, exact)
    wrong += compare_gradients(
        {name: ours[f"grad.{name}"] for name in exact_gradients}, their_gradients, exact_gradients
    )
    assert not wrong, "\n".join(wrong)


def main():
    program, arch = sys.argv[1], sys.argv[2]
    side, rows = [int(a) for a in sys.argv[3:5]]
    if not hasattr(torchvision.models, arch):
        print(f"skipped: torchvision {torchvision.__version__} has no {arch}")
        sys.exit(77)
    torch.manual_seed(11)
    with tempfile.TemporaryDirectory() as folder:
        net = build(arch, side)
        write_safetensors(
            f"{folder}/batch",
            {"images": torch.zeros(1, 3, side, side), "labels": torch.zeros(1, dtype=torch.int64)},
        )
        check_initial(program, arch, folder, net)
        check_step(program, arch, side, rows, folder, net)


if __name__ == "__main__":
    main()
