# SPDX-License-Identifier: Apache-2.0
"""tensor_file: safetensors files as dictionaries of torch tensors, how far two tensors are apart,
and whether two are samples of one distribution."""

import json
import struct

import numpy as np
import torch


def write_safetensors(path, tensors):
    header, chunks, at = {}, [], 0
    for name, t in tensors.items():
        a = t.detach().numpy()
        kind = {"float32": "F32", "float64": "F64", "int64": "I64", "uint8": "U8"}[str(a.dtype)]
        header[name] = {"dtype": kind, "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
        chunks.append(a.tobytes())
        at += a.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(chunks))


def read_safetensors(path):
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header, data = json.loads(f.read(size)), f.read()
    out = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        kinds = {"F32": np.float32, "F64": np.float64, "I64": np.int64, "U8": np.uint8}
        kind = kinds[entry["dtype"]]
        out[name] = torch.from_numpy(
            np.frombuffer(data[begin:end], kind).reshape(entry["shape"]).copy()
        )
    return out


def distance(a, b):
    """L2, relative to b."""
    a, b = a.double(), b.double()
    return (a - b).norm().item() / max(b.norm().item(), 1e-30)


def shape_of(t):
    """Mean, deviation and kurtosis."""
    t = t.double().flatten()
    mean, deviation = t.mean(), t.std(unbiased=False)
    return (
        mean.item(),
        deviation.item(),
        ((t - mean) / deviation).pow(4).mean().item() if deviation > 0 else 0,
    )


def compare_initial(name, ours, theirs):
    our_mean, our_deviation, our_kurtosis = shape_of(ours)
    mean, deviation, kurtosis = shape_of(theirs)
    n = theirs.numel()
    if deviation == 0 or n < 2:
        return (
            torch.equal(ours, theirs)
            or n < 2
            and deviation == 0
            and abs(our_mean) < 10 * abs(theirs.item()) + 1
        )
    return (
        abs(our_mean - mean) <= 8 * deviation / n**0.5
        and abs(our_deviation / deviation - 1) <= 8 / n**0.5
        and (n < 4000 or abs(our_kurtosis - kurtosis) < 0.5)
    )
