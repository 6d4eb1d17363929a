#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch_file: the command that an error prints for a file of torch.save() converts it."""
import os
import shlex
import subprocess
import sys
import tempfile

try:
    import safetensors.torch
    import torch
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

copy_program = sys.argv[1]
weights = {
    "conv.weight": torch.randn(4, 3, 3, 3).to(memory_format=torch.channels_last),
    "fc.weight": torch.randn(3, 4),
    "fc.module.bias": torch.randn(3),
    "bn.num_batches_tracked": torch.tensor(7),
}
weights["tied.weight"] = weights["fc.weight"]
wrapped = {f"module.{name}": value for name, value in weights.items()}
files = {
    "checkpoint.pth.tar": {
        "epoch": 3,
        "arch": "resnet18",
        "state_dict": wrapped,
        "best_acc1": torch.tensor(1.5),
        "optimizer": torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], 0.1).state_dict(),
    },
    "a model.pt": {"model": weights, "epoch": 1},
    "weights.pth": weights,
}


def check(folder, name, state, zipped):
    source, target = os.path.join(folder, name), os.path.join(
        folder, f"{name.split('.')[0]}.safetensors"
    )
    torch.save(state, source, _use_new_zipfile_serialization=zipped)
    refused = subprocess.run(
        [copy_program, source, f"{folder}/copy"], stderr=subprocess.PIPE, text=True
    )
    assert (
        refused.returncode == 1 and f"{source} is a file of torch.save()" in refused.stderr
    ), refused
    command = refused.stderr[refused.stderr.index("python3 -c"):]
    assert command.count("\n") == 1, command
    subprocess.run(
        command.replace("python3", shlex.quote(sys.executable), 1), shell=True, check=True
    )
    subprocess.run([copy_program, target, f"{folder}/copy"], check=True)
    loaded = safetensors.torch.load_file(f"{folder}/copy")
    assert set(loaded) == set(weights), set(loaded) ^ set(weights)
    assert all(torch.equal(loaded[name], value) for name, value in weights.items())


with tempfile.TemporaryDirectory() as temporary:
    for (name, state), zipped in zip(files.items(), (True, False, True)):
        check(temporary, name, state, zipped)
print(f"torch {torch.__version__}, safetensors {safetensors.__version__}: converted")
