#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch_file.py CHECKPOINT_COPY CONVERTER: files of torch.save() become files that Lockstep loads,
by the command that an error prints, and by the converter for what programs save."""
import argparse
import collections
import contextlib
import importlib.util
import io
import json
import os
import shlex
import struct
import subprocess
import sys
import tempfile
import zipfile

try:
    import torch
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

copy_program, converter = sys.argv[1:]
spec = importlib.util.spec_from_file_location("convert", converter)
convert = importlib.util.module_from_spec(spec)
spec.loader.exec_module(convert)
TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "I64": torch.int64}
OTHER_ORDER = b"big" if sys.byteorder == "little" else b"little"
ARGS = argparse.Namespace(model="resnet18", lr=0.1, milestones=[1, 2], device=None)
OPTIMIZER = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], 0.1, momentum=0.9).state_dict()
weights = {
    "conv.weight": torch.randn(4, 3, 3, 3).to(memory_format=torch.channels_last),
    "fc.weight": torch.randn(3, 4),
    "fc.module.bias": torch.randn(3),
    "bn.num_batches_tracked": torch.tensor(7),
    "half": torch.randn(5).half(),
    "double": torch.randn(5).double(),
    "none": torch.zeros(0, 4),
}
weights["tied.weight"] = weights["fc.weight"]


def prefixed(prefix, state=None):
    return {prefix + name: value for name, value in (state or weights).items()}


def read(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    header.pop("__metadata__", None)
    loaded = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        flat = torch.empty(0, dtype=TYPES[entry["dtype"]])
        if end > begin:
            flat = torch.frombuffer(bytearray(data[begin:end]), dtype=flat.dtype)
        loaded[name] = flat.reshape(entry["shape"])
    return loaded


def check_loads(path, expected):
    """Lockstep loads the file, and it has the expected entries."""
    subprocess.run([copy_program, path, path + ".copy"], check=True)
    for found in (read(path), read(path + ".copy")):
        assert set(found) == set(expected), set(found) ^ set(expected)
        for name, value in expected.items():
            assert found[name].dtype == value.dtype and torch.equal(found[name], value), name


def run(*words):
    """The converter's exit code and what it printed."""
    printed = io.StringIO()
    sys.argv[1:] = words
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            convert.main()
        except SystemExit as ended:
            print(ended)
            return 1, printed.getvalue()
    return 0, printed.getvalue()


def check_command(folder, name, state, zipped):
    """The command of the error, as a user copies it."""
    source = os.path.join(folder, name)
    target = os.path.join(folder, f"{name.split('.')[0]}-weights.safetensors")
    torch.save(state, source, _use_new_zipfile_serialization=zipped)
    refused = subprocess.run(
        [copy_program, source, f"{folder}/copy"], stderr=subprocess.PIPE, text=True
    )
    assert refused.returncode == 1, refused
    assert f"{source} is a file of torch.save()" in refused.stderr, refused
    command = refused.stderr[refused.stderr.index("python3 "):]
    assert command.count("\n") == 1, command
    python = shlex.quote(sys.executable)
    subprocess.run(command.replace("python3", python, 1), shell=True, check=True)
    check_loads(target, weights)


def check_states(folder):
    """What programs save, as (state, words of the converter, part of what it prints)."""
    module = torch.nn.Linear(2, 3)
    attributes = {name: torch.nn.Parameter(value, value.is_floating_point())
                  for name, value in weights.items()}
    attributes["half"].decay = False
    ordered = collections.OrderedDict(weights)
    ordered._metadata = collections.OrderedDict(version=1)  # as that of state_dict()
    cases = [
        ({"model": weights, "epoch": 1, "optimizer": OPTIMIZER}, [], ""),
        (prefixed("_orig_mod."), [], ""),
        (prefixed("module._orig_mod."), [], ""),
        (prefixed("_orig_mod.module."), [], ""),
        (prefixed("module.module."), [], ""),
        ({"net": prefixed("module."), "acc": torch.tensor(1.5)}, [], ""),
        ({"a": weights, "b": {"x": torch.ones(1)}}, ["--entry", "a"], ""),
        ({**prefixed("module."), "step": 5}, [], "skipped: step (int)"),
        (ordered, [], ""),
        ({**weights, "step": 5}, [], "skipped: step (int)"),
        ({**weights, "sparse": torch.ones(2).to_sparse()}, [], "skipped: sparse ("),
        ({"n_averaged": torch.tensor(3), **prefixed("module.")}, [], "skipped: n_averaged"),
        ({"model": weights, "model_ema": prefixed("module.")}, [], "not converted: model_ema"),
        (module, ["--unsafe"], ""),
        ({"model": module}, ["--unsafe"], ""),
        ({"model": weights, "args": ARGS, "epoch": 1}, [], ""),
        ({**weights, "args": ARGS}, [], "skipped: args (argparse.Namespace)"),
        ({"model": attributes}, [], ""),
    ]
    for state, words, text in cases:
        for zipped in (True, False):
            torch.save(state, f"{folder}/in.pth", _use_new_zipfile_serialization=zipped)
            code, printed = run(f"{folder}/in.pth", f"{folder}/out", "--force", *words)
            assert code == 0 and text in printed, (words, text, printed)
            check_loads(f"{folder}/out", module.state_dict() if "--unsafe" in words else weights)


def check_renames(folder):
    """As torchvision renames while it loads; auxiliary classifiers are left out."""
    a = torch.ones(1)
    names = {
        "features.denseblock1.denselayer12.norm.1.running_mean":
            "features.denseblock1.denselayer12.norm1.running_mean",
        "features.denseblock1.denselayer1.conv.2.weight":
            "features.denseblock1.denselayer1.conv2.weight",
        "encoder.layers.encoder_layer_11.mlp.linear_1.weight":
            "encoder.layers.encoder_layer_11.mlp.0.weight",
        "encoder.layers.encoder_layer_0.mlp.linear_2.bias":
            "encoder.layers.encoder_layer_0.mlp.3.bias",
        "AuxLogits.fc.weight": None,
        "Mixed_7c.branch_pool.conv.weight": "Mixed_7c.branch_pool.conv.weight",
        "aux1.fc1.weight": "aux1.fc1.weight",  # not of GoogLeNet
    }
    torch.save(prefixed("module.", {name: a for name in names}), f"{folder}/in.pth")
    code, printed = run(f"{folder}/in.pth", f"{folder}/out", "--force")
    assert code == 0 and "AuxLogits.fc.weight (an auxiliary classifier)" in printed, printed
    check_loads(f"{folder}/out", {name: a for name in names.values() if name})


def check_refusals(folder):
    """No file is written, and the error says what to do."""
    source, target = f"{folder}/in.pth", f"{folder}/refused"
    for state, words, text in (
        (torch.nn.Linear(2, 3), [], "the file is a whole object of torch.nn.modules.linear.Linear"),
        (torch.nn.Linear(2, 3), [], "--unsafe"),
        ({"epoch": 3}, [], "no tensors"),
        (weights, ["--entry", "b"], "no entry b; the file has: conv.weight"),
        ({"a": weights, "b": weights}, [], "several state_dicts: a, b; choose one with --entry"),
        ([1, 2], [], "the file is of list, not a state_dict"),
        ({"x": torch.ones(1), "_orig_mod.x": torch.ones(1)}, [], "the same name"),
    ):
        torch.save(state, source)
        code, printed = run(source, target, *words)
        assert code == 1 and text in printed and not os.path.exists(target), printed
    torch.save(weights, source)
    assert run(source, target)[0] == 0
    code, printed = run(source, target)
    assert code == 1 and f"{target} exists; --force replaces it" in printed, printed
    with open(f"{folder}/ran", "w") as file:
        file.write("")
    for zipped in (True, False):
        state = {**weights, "evil": Executes(f"{folder}/ran")}
        torch.save(state, source, _use_new_zipfile_serialization=zipped)
        code, printed = run(source, target, "--force")
        assert code == 0 and "skipped: evil (posix.remove)" in printed, printed
        assert os.path.exists(f"{folder}/ran"), "code of the file was executed"
        truncate(source)
        code, printed = run(source, target, "--force")
        text = "is truncated" if zipped else "cannot be read: "
        assert code == 1 and text in printed, printed


def check_hostile_files(folder):
    """The reason is printed and nothing is left behind."""
    source, target = f"{folder}/hostile.pth", f"{folder}/hostile"
    names = ("denselayer1.norm.1.weight", "denselayer1.norm1.weight")
    for state, text in (
        ({name: torch.ones(2) for name in names}, f"two entries have the name {names[1]}"),
        ({"w": torch.ones(1).expand(1 << 20, 1 << 20)}, "cannot write "),
        ({"__metadata__": torch.ones(2)}, "skipped: __metadata__ (a reserved name)"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a pointer of Git LFS"),
        (b"\xef\xbb\xbf\r\n<!DOCTYPE html>", "is an HTML or XML page"),
        ({"a/b.txt": b""}, "is a zip archive without data.pkl"),
        ({"a/data.pkl": b"", "a/byteorder": OTHER_ORDER}, "another byte order"),
    ):
        if isinstance(state, bytes):
            with open(source, "wb") as file:
                file.write(state)
        elif torch.is_tensor(next(iter(state.values()))):
            torch.save(state, source)
        else:
            with zipfile.ZipFile(source, "w") as archive:
                for name, content in state.items():
                    archive.writestr(name, content)
        code, printed = run(source, target)
        assert code == 1 and text in printed, (text, printed)
        assert not os.path.exists(target) and not os.path.exists(f"{target}.tmp"), text


def truncate(path):
    with open(path, "r+b") as file:
        file.truncate(os.path.getsize(path) - 100)


class Executes:
    """Removes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.remove, (self.path,)


with tempfile.TemporaryDirectory() as temporary:
    check_command(temporary, "checkpoint.pth.tar",
                  {"epoch": 3, "state_dict": prefixed("module."), "optimizer": OPTIMIZER}, True)
    check_command(temporary, "a model.pt", {"model": weights, "epoch": 1}, False)
    check_command(temporary, "old.pth", {"model": weights, "args": ARGS}, False)
    check_states(temporary)
    check_renames(temporary)
    check_refusals(temporary)
    check_hostile_files(temporary)
print(f"torch {torch.__version__}: converted")
