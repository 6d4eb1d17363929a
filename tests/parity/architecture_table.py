#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""architecture_table.py: prints tests/nn/architecture_table.inc, from the installed torchvision
(which needs torch 2 or later).

A row has the name, how many parameters there are and how many values they have, the same of the
buffers, and the FNV-1a hash of the lines "NAME:DIMxDIM\n" of the state_dict. googlenet and
inception_v3 come without auxiliary classifiers.
"""

import sys

import torch
import torchvision
from torchvision.models.regnet import BlockParams

WITHOUT_AUXILIARY = {"googlenet": {"aux_logits": False, "init_weights": False},
                     "inception_v3": {"aux_logits": False, "init_weights": False}}
LEFT_OUT = ("maxvit", "swin")


def build(name):
    return getattr(torchvision.models, name)(weights=None, **WITHOUT_AUXILIARY.get(name, {}))


def block_params(*args, from_init_params=BlockParams.from_init_params, **kwargs):
    """RegNet computes its widths with tensors, which need a device that computes."""
    with torch.device("cpu"):
        return from_init_params(*args, **kwargs)


def fnv1a(text):
    value = 0xcbf29ce484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001b3 % 2**64
    return value


def row(name):
    with torch.device("meta"):
        model = build(name)
    lines = "".join(
        f"{key}:{'x'.join(map(str, t.shape))}\n" for key, t in model.state_dict().items()
    )
    parameters, buffers = list(model.parameters()), list(model.buffers())
    return (f'{{"{name}", {len(parameters)}, {sum(p.numel() for p in parameters)}, {len(buffers)}, '
            f"{sum(b.numel() for b in buffers)}, 0x{fnv1a(lines):016x}}},")


def main():
    BlockParams.from_init_params = block_params
    names = [
        n
        for n in torchvision.models.list_models(module=torchvision.models)
        if not n.startswith(LEFT_OUT)
    ]
    print("/* SPDX-License-Identifier: Apache-2.0 */")
    print(
        "// Made by tests/parity/architecture_table.py from torchvision "
        f"{torchvision.__version__.partition('+')[0]}."
    )
    print("// clang-format off")
    for name in names:
        if len(sys.argv) == 1 or name in sys.argv[1:]:
            print(row(name))


if __name__ == "__main__":
    main()
