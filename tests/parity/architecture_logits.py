#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""architecture_logits.py: prints tests/nn/architecture_logits.inc, what torchvision's networks
give in evaluation.

Values of parameter or buffer number p of the state_dict (images: 9999) are made by fill(), as
tests/nn/test_architectures.c does.
"""

import numpy as np
import torch
import torchvision

ARCHITECTURES = ("mobilenet_v3_small", "shufflenet_v2_x0_5", "squeezenet1_0")
CLASSES, ROWS, SIDE, IMAGES = 10, 2, 64, 9999


def noise(number, count):
    """Multiples of 2^-23 in [-1, 1), from integers of 32 bits."""
    x = (np.arange(count, dtype=np.uint64) + number * 1000003) * 2654435761 % 2**32
    x = (x ^ x >> np.uint64(15)) * np.uint64(2246822519) % 2**32
    x = x ^ x >> np.uint64(13)
    return (x >> np.uint64(8)).astype(np.float64) / 2**23 - 1


def fill(number, name, t):
    values = noise(number, t.numel()).reshape(tuple(t.shape))
    if t.dim() > 1:
        fan_in = t[0].numel()
        values *= 2 / 2.0 ** max(k for k in range(16) if 4**k <= fan_in)
    elif name.endswith(("weight", "running_var")):
        values = 1 + values / 4
    else:
        values /= 4
    return torch.from_numpy(values.astype(np.float32))


def logits(arch):
    net = getattr(torchvision.models, arch)(weights=None, num_classes=CLASSES)
    state = net.state_dict()
    net.load_state_dict(
        {
            name: t if t.dtype == torch.int64 else fill(i, name, t)
            for i, (name, t) in enumerate(state.items())
        }
    )
    images = torch.from_numpy(noise(IMAGES, ROWS * 3 * SIDE * SIDE).reshape(ROWS, 3, SIDE, SIDE))
    with torch.no_grad():
        return net.double().eval()(images).flatten().tolist()


def main():
    print("/* SPDX-License-Identifier: Apache-2.0 */")
    print(
        "// Made by tests/parity/architecture_logits.py from torchvision "
        f"{torchvision.__version__.partition('+')[0]}."
    )
    print("// clang-format off")
    for arch in ARCHITECTURES:
        values = [f"{v:.7g}" for v in logits(arch)]
        lines = [", ".join(values[i:i + 7]) for i in range(0, len(values), 7)]
        print(f'{{"{arch}",\n    {{' + ",\n    ".join(lines) + "}},")


if __name__ == "__main__":
    main()
