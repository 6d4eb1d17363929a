# SPDX-License-Identifier: Apache-2.0
"""tensor_file: safetensors files as dictionaries of torch tensors, and how far two tensors are
apart."""

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
