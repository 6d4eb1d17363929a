# SPDX-License-Identifier: Apache-2.0
"""Converts weights of PyTorch to safetensors, which Lockstep's programs load. Needs torch only.

IN is a file of torch.save(): a state_dict, or a checkpoint that holds one; or torchvision:NAME, the
weights that torchvision downloads for the architecture NAME. Only tensors are read, and no code of
the file is executed, except with --unsafe. Names become those that the model has: without the
prefixes of wrappers, and renamed as torchvision does when it loads old files.
"""
import argparse
import collections
import ctypes
import json
import os
import pickle
import re
import struct
import sys
import zipfile

if not __package__:  # started by its path: lockstep/torch beside it must not hide torch
    here = os.path.dirname(os.path.realpath(__file__))
    sys.path = [path for path in sys.path if os.path.realpath(path) != here]
try:
    import torch
except ImportError as missing:
    raise SystemExit(f"lockstep.convert: {sys.executable} lacks torch: {missing}") from None

TYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
# Modules of the names of types.
TORCH = ("torch", "torch.storage")
STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "UntypedStorage": "uint8",
}
MAGIC = 0x1950A86A20F9469CFC6C  # the first object of a file of torch before 1.6
# Where checkpoints of training programs hold the state_dict.
ENTRIES = ("state_dict", "model", "model_state_dict")
# torch.compile(), FullyShardedDataParallel and checkpoint_wrapper() add these anywhere in a name,
# DistributedDataParallel, DataParallel and AveragedModel their prefix in front of each name.
WRAPPERS = re.compile(
    r"(?:^|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
)
PREFIX = "module."
METADATA = "__metadata__"  # no tensor in safetensors has this name
AVERAGED = "n_averaged"  # AveragedModel's count of updates
# As densenet.py and vision_transformer.py of torchvision do.
RENAMES = (
    (re.compile(r"(denselayer\d+\.(?:norm|relu|conv))\.([12]\.\w+)$"), r"\1\2"),
    (re.compile(r"(encoder_layer_\d+\.mlp)\.linear_1\.(\w+)$"), r"\1.0.\2"),
    (re.compile(r"(encoder_layer_\d+\.mlp)\.linear_2\.(\w+)$"), r"\1.3.\2"),
)
# Auxiliary classifiers, which Lockstep's networks do not have, and a name of their network.
AUXILIARY = (
    ("AuxLogits.", "Mixed_7c.branch_pool.conv.weight"),
    (("aux1.", "aux2."), "inception5b.branch4.1.conv.weight"),
)
SHOWN = 20  # names in a line
# How a file begins that is no zip archive of torch.save().
OTHER_FILES = (
    (b"PK\3\4", "is truncated: it begins as a zip archive and does not end as one"),
    (b"version https://git-lfs", "is a pointer of Git LFS; get the file with git lfs pull"),
    (b"<", "is an HTML or XML page of the server, not the file; open the address in a browser"),
)


class Skipped:
    """Takes the place of an object that is no tensor, and ignores what it is filled with."""

    def __new__(cls, *_args, **_named):
        return object.__new__(cls)

    def ignore(self, *_args, **_named):
        pass

    __init__ = __setstate__ = __setitem__ = append = extend = add = ignore


class Failure(Exception):
    """What the user has to change."""


def type_name(value):
    """The name of the value's class, with the module."""
    module = type(value).__module__
    return type(value).__name__ if module == "builtins" else f"{module}.{type(value).__name__}"


def shown(names):
    """The first names as a list for a message."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def memory_of(tensor):
    """The bytes of a contiguous tensor, as a buffer."""
    n = tensor.numel() * tensor.element_size()
    return (ctypes.c_char * n).from_address(tensor.data_ptr()) if n > 0 else b""


# --- reading ---


def rebuild(storage, offset, size, stride, *_rest):
    """torch._utils._rebuild_tensor_v2(), where a storage is a tensor of one dimension."""
    return storage.as_strided(size, stride, offset)


def rebuild_as(storage, offset, size, stride, _grad, _hooks, dtype, *_rest):
    return rebuild(storage.view(dtype), offset, size, stride)


# What stands in a file for a function: nothing else is called.
FUNCTIONS = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("torch", "Size"): tuple,
    ("torch._utils", "_rebuild_tensor"): rebuild,
    ("torch._utils", "_rebuild_tensor_v2"): rebuild,
    ("torch._utils", "_rebuild_tensor_v3"): rebuild_as,
    ("torch._utils", "_rebuild_parameter"): lambda data, *_rest: data,
    ("torch._utils", "_rebuild_parameter_with_state"): lambda data, *_rest: data,
    ("torch._tensor", "_rebuild_from_type_v2"): lambda rebuilds, _type, args, _: rebuilds(*args),
}


class TensorReader(pickle.Unpickler):
    """Makes tensors and plain values; objects of all other classes become Skipped. (torch's own
    weights_only refuses files with such objects, and in old versions those with numbers.)"""

    def __init__(self, file):
        super().__init__(file, encoding="utf-8")
        self.storages = {}

    def find_class(self, module, name):
        found = getattr(torch, STORAGES.get(name, name), None) if module in TORCH else None
        if isinstance(found, torch.dtype):
            return found
        return FUNCTIONS.get((module, name)) or type(name, (Skipped,), {"__module__": module})

    def persistent_load(self, pid):
        if pid[0] != "storage":
            return pid[1]
        dtype, key, n = pid[1], pid[2], pid[4]
        if key not in self.storages:
            self.storages[key] = torch.empty(n, dtype=dtype)
        _, begin, size = pid[5] if pid[5:] and pid[5] is not None else (None, 0, n)
        return self.storages[key][begin:begin + size]


def fill(storage, file):
    """Reads the elements."""
    view = memory_of(storage)
    if len(view) > 0 and file.readinto(view) != len(view):
        raise EOFError("the file is truncated")


def read_zip(path):
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        pickled = next((name for name in names if name.endswith("/data.pkl")), None)
        if pickled is None:
            raise Failure("is a zip archive without data.pkl, not of torch.save()")
        order = f"{os.path.dirname(pickled)}/byteorder"
        if order in names and archive.read(order) != sys.byteorder.encode():
            raise Failure("was written on a machine with another byte order")
        reader = TensorReader(archive.open(pickled))
        loaded = reader.load()
        for key, storage in reader.storages.items():
            with archive.open(f"{os.path.dirname(pickled)}/data/{key}") as file:
                fill(storage, file)
    return loaded


def read_old(path):
    """A file of torch before 1.6: pickles, then of each storage the number and the elements."""
    with open(path, "rb") as file:
        start = file.read(64).lstrip(b"\xef\xbb\xbf \t\r\n")
        for begin, what in OTHER_FILES:
            if start.startswith(begin):
                raise Failure(what)
        file.seek(0)
        if TensorReader(file).load() != MAGIC:
            raise Failure("no file of torch.save()")
        TensorReader(file).load()  # version
        TensorReader(file).load()  # sizes of types
        reader = TensorReader(file)
        loaded = reader.load()
        keys = TensorReader(file).load()
        if set(keys) != set(reader.storages):
            raise EOFError("elements of a tensor are missing")
        for key in keys:
            file.read(8)
            fill(reader.storages[key], file)
    return loaded


def load_file(path, unsafe):
    try:
        if unsafe:
            return torch.load(path, map_location="cpu", weights_only=False)
        return read_zip(path) if zipfile.is_zipfile(path) else read_old(path)
    except OSError as error:
        raise Failure(error.strerror) from None
    except Failure:
        raise
    except Exception as error:  # of any class: the file may have any content
        raise Failure(f"cannot be read: {type(error).__name__}: {error}") from None


def load_torchvision(name):
    try:
        import torchvision

        return getattr(torchvision.models, name)(weights="DEFAULT").state_dict()
    except ImportError as missing:
        raise Failure(f"{sys.executable} lacks torchvision: {missing}") from None
    except (AttributeError, TypeError):
        raise Failure(f"torchvision has no architecture {name}") from None
    except OSError as error:
        raise Failure(f"torchvision cannot download the weights: {error}") from None


def as_dictionary(value):
    """The state_dict of a module, a dictionary itself; None for anything else."""
    if isinstance(value, torch.nn.Module):
        return value.state_dict()
    return value if isinstance(value, dict) else None


def holders(loaded):
    """The entries that are state_dicts: modules, and dictionaries with tensors."""
    return [
        name
        for name, value in loaded.items()
        if any(map(torch.is_tensor, (as_dictionary(value) or {}).values()))
        and not str(name).endswith("_extra_state")  # of a module
    ]


def require_dictionary(value, what):
    found = as_dictionary(value)
    if found is None and isinstance(value, Skipped):
        raise Failure(
            f"{what} is a whole object of {type_name(value)}, which only code of the file can "
            "restore; save its state_dict() instead, or add --unsafe if you trust the file's source"
        )
    if found is None:
        raise Failure(f"{what} is of {type_name(value)}, not a state_dict")
    return found


def find_state(loaded, entry):
    """The state_dict in what a file holds."""
    loaded = require_dictionary(loaded, "the file")
    found = holders(loaded)
    whole = [name for name in ENTRIES if isinstance(loaded.get(name), Skipped)]
    if entry is None and found + whole:
        entry = next((name for name in ENTRIES if name in found + whole), found[0])
        others = [name for name in found if name != entry]
        if others and entry not in ENTRIES:
            raise Failure(f"several state_dicts: {shown(found)}; choose one with --entry NAME")
        if others:
            print(f"not converted: {shown(others)} (with --entry NAME)", file=sys.stderr)
    if entry is not None and entry not in loaded:
        raise Failure(f"no entry {entry}; the file has: {shown(list(map(str, loaded)))}")
    return loaded if entry is None else require_dictionary(loaded[entry], entry)


# --- names ---


def reason_to_skip(name, value, names):
    """Why a tensor is not converted; None: it is."""
    if str(value.layout) != "torch.strided" or value.is_quantized or value.is_meta:
        return "a sparse, quantized or empty tensor"
    if name == METADATA:
        return "a reserved name"
    if str(value.dtype)[len("torch."):] not in TYPES:
        return str(value.dtype)
    if any(name.startswith(prefix) and network in names for prefix, network in AUXILIARY):
        return "an auxiliary classifier"
    return None


def model_name(name):
    for pattern, replacement in RENAMES:
        name = pattern.sub(replacement, name)
    return name


def unique_name(name, names, taken):
    """The model's name of an entry; a file with two for it does not say which is meant."""
    renamed = model_name(name)
    if renamed in taken or (renamed != name and renamed in names):
        raise Failure(f"two entries have the name {renamed} in the model")
    return renamed


def unwrapped(state):
    """The entries without the prefixes of wrappers, and those that are left out."""
    plain = {WRAPPERS.sub("", str(name)): value for name, value in state.items()}
    left_out = {}
    while any(name.startswith(PREFIX) for name in plain) and all(
        name.startswith(PREFIX) or name == AVERAGED for name in plain
    ):
        left_out.update({name: plain.pop(name) for name in [AVERAGED] if name in plain})
        plain = {name[len(PREFIX):]: value for name, value in plain.items()}
    if len(plain) + len(left_out) != len(state):
        raise Failure("two entries have the same name without the prefixes of wrappers")
    return plain, left_out


def convertible(state):
    """The tensors of a state_dict under the names of the model, and what is skipped."""
    skipped = [f"{name} ({type_name(value)})" for name, value in state.items()
               if not torch.is_tensor(value)]
    plain, left_out = unwrapped(
        {name: value for name, value in state.items() if torch.is_tensor(value)}
    )
    skipped += [f"{name} (the count of AveragedModel)" for name in left_out]
    tensors = {}
    for name, value in plain.items():
        reason = reason_to_skip(name, value, plain)
        if reason is not None:
            skipped.append(f"{name} ({reason})")
        else:
            tensors[unique_name(name, plain, tensors)] = value.detach()
    return tensors, skipped


# --- writing ---


def header_of(tensors):
    """The file's beginning: the length of the JSON text, and the text."""
    header, at = {METADATA: {"format": "pt"}}, 0
    for name, tensor in tensors.items():
        end = at + tensor.numel() * tensor.element_size()
        kind = TYPES[str(tensor.dtype)[len("torch."):]]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write(path, tensors):
    """Writes to another name first, so that a file of this name is whole. Large elements come
    first: then each tensor is aligned."""
    order = sorted(tensors, key=lambda name: -tensors[name].element_size())
    tensors = {name: tensors[name] for name in order}
    partial = f"{path}.tmp"
    try:
        with open(partial, "wb") as file:
            file.write(header_of(tensors))
            for tensor in tensors.values():
                tensor = tensor.contiguous()
                file.write(memory_of(tensor))
        os.replace(partial, path)
    except (OSError, RuntimeError) as error:  # RuntimeError: torch has no memory for a copy
        if os.path.exists(partial):
            os.remove(partial)
        reason = getattr(error, "strerror", None) or error
        raise Failure(f"cannot write {path}: {reason}") from None


# --- the program ---


def convert(options):
    vision, _, name = options.input.partition("torchvision:")
    if os.path.exists(options.output) and not options.force:
        raise Failure(f"{options.output} exists; --force replaces it")
    if name and not vision:
        loaded = load_torchvision(name)
    else:
        loaded = load_file(options.input, options.unsafe)
    tensors, skipped = convertible(find_state(loaded, options.entry))
    if skipped:
        print(f"skipped: {shown(skipped)}", file=sys.stderr)
    if not tensors:
        raise Failure("no tensors; --entry NAME converts the state_dict of another entry")
    write(options.output, tensors)
    print(f"{options.output}: {len(tensors)} tensors, {os.path.getsize(options.output)} bytes")


def main():
    parser = argparse.ArgumentParser(
        prog="lockstep.convert",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Example: python3 -m lockstep.convert checkpoint.pth.tar weights.safetensors\n"
        "See docs/training.md, Files.",
    )
    parser.add_argument("input", metavar="IN", help="file of torch.save(), or torchvision:NAME")
    parser.add_argument("output", metavar="OUT", help="the safetensors file")
    parser.add_argument("--entry", metavar="NAME", help="convert this entry of a checkpoint, for "
                        f"example model_ema; default: {' or '.join(ENTRIES)}")
    parser.add_argument("--force", action="store_true", help="replace OUT")
    parser.add_argument("--unsafe", action="store_true", help="load whole modules, too: executes "
                        "code of the file, which must come from a source that you trust")
    options = parser.parse_args()
    try:
        convert(options)
    except Failure as failure:
        raise SystemExit(f"lockstep.convert: {options.input}: {failure}") from None


if __name__ == "__main__":
    main()
