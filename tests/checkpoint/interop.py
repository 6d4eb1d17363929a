#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""interop: what the safetensors package writes we load, and what we save it reads. Digests are
those of hashlib, as docs/training.md defines them."""
import hashlib
import os
import subprocess
import sys
import tempfile

import numpy
import safetensors
import safetensors.numpy

copy_program = sys.argv[1]
random = numpy.random.default_rng(1)
tensors = {
    "conv.weight": random.standard_normal((16, 1, 5, 5)).astype(numpy.float32),
    "running_mean": random.standard_normal(7),
    "half": random.standard_normal((3, 3)).astype(numpy.float16),
    "num_batches_tracked": numpy.array(12345678901234, dtype=numpy.int64),
    "labels": numpy.arange(-5, 5, dtype=numpy.int32),
    "small": numpy.arange(-3, 2, dtype=numpy.int8),
    "image": numpy.arange(251, dtype=numpy.uint8),
    "empty": numpy.zeros((0, 4), dtype=numpy.float32),
    "name \"with\" caf\u00e9\n": numpy.ones(1, dtype=numpy.float32),
}


def copied(folder, source):
    target = os.path.join(folder, "copy.safetensors")
    subprocess.run([copy_program, source, target, "note"], check=True)
    return target


def check_digests(file):
    """Compares all digests of an open file; returns the rest of its metadata."""
    metadata = file.metadata()
    header = hashlib.blake2b(digest_size=32)
    for name in sorted(file.keys()):
        entry = file.get_slice(name)
        sizes = ",".join(map(str, entry.get_shape()))
        header.update(f"{name}\0{entry.get_dtype()}\0{sizes}\0".encode())
        data = file.get_tensor(name).tobytes()
        assert metadata["lockstep.blake2b:" + name] == hashlib.blake2b(
            data, digest_size=32).hexdigest(), name
    own = metadata.pop("lockstep.blake2b")
    for key, value in sorted(metadata.items()):
        header.update(f"{key}\0{value}\0".encode())
    assert own == header.hexdigest()
    return {key: value for key, value in metadata.items() if not key.startswith("lockstep.")}


def check_saved_again(folder, source):
    """What Python saves with the metadata of a file of ours loads, unless a tensor has changed."""
    again = os.path.join(folder, "again.safetensors")
    with safetensors.safe_open(source, framework="np") as file:
        metadata = file.metadata()
    loaded = safetensors.numpy.load_file(source)
    safetensors.numpy.save_file(loaded, again, metadata=metadata)
    copied(folder, again)
    loaded["labels"][3] += 1
    safetensors.numpy.save_file(loaded, again, metadata=metadata)
    refused = subprocess.run([copy_program, again, os.path.join(folder, "never")], text=True,
                             stderr=subprocess.PIPE)
    assert refused.returncode != 0 and "labels" in refused.stderr, refused


def check_numpy(folder):
    source = os.path.join(folder, "original.safetensors")
    safetensors.numpy.save_file(tensors, source, metadata={"note": "gr\u00fc\u00dfe"})
    target = copied(folder, source)
    loaded = safetensors.numpy.load_file(target)
    assert set(loaded) == set(tensors), set(loaded) ^ set(tensors)
    for name, want in tensors.items():
        assert loaded[name].dtype == want.dtype and loaded[name].shape == want.shape, name
        assert loaded[name].tobytes() == want.tobytes(), name
    with safetensors.safe_open(target, framework="np") as file:
        assert check_digests(file) == {"note": "gr\u00fc\u00dfe"}, file.metadata()
        assert (file.get_slice("conv.weight")[3:5] == tensors["conv.weight"][3:5]).all()
    check_saved_again(folder, target)


def check_torch(folder):
    try:
        import safetensors.torch
        import torch
    except ImportError as missing:
        print(f"without torch: {missing}")
        return
    source = os.path.join(folder, "torch.safetensors")
    state = {
        "bf16": torch.randn(5, 3).to(torch.bfloat16),
        "fc.weight": torch.randn(3, 4),
        "n": torch.tensor(7),
    }
    safetensors.torch.save_file(state, source)
    loaded = safetensors.torch.load_file(copied(folder, source))
    for name, want in state.items():
        assert loaded[name].dtype == want.dtype and torch.equal(loaded[name], want), name


with tempfile.TemporaryDirectory() as temporary:
    check_numpy(temporary)
    check_torch(temporary)
print(f"safetensors {safetensors.__version__} agrees")
