# SPDX-License-Identifier: Apache-2.0
"""saved_state.py: the sum by which scripts compare the states that trainings have saved."""
import hashlib
import json
import struct


def state_sum(path):
    """The sha256 of the tensors of the state beside the weights `path`, in the order of names."""
    with open(path.replace(".safetensors", ".resume.safetensors"), "rb") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(length))
        data = f.read()
    total = hashlib.sha256()
    for name in sorted(header):
        if name.startswith(("model.", "optimizer.", "outer.", "island.")):
            begin, end = header[name]["data_offsets"]
            total.update(name.encode() + data[begin:end])
    return total.hexdigest()
