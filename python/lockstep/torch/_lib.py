# SPDX-License-Identifier: Apache-2.0
"""liblockstep by ctypes: the functions of <lockstep/comm.h> and <lockstep/store.h> that are used.

Calls release the GIL. A failing call becomes an exception with the library's text.
"""
from __future__ import annotations

import ctypes
import glob
import os
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_int64, c_size_t, c_void_p
from typing import List, Optional

import torch.distributed as dist

import lockstep

OK, EINVAL, EIO, EUNSUPPORTED, ETIMEOUT = 0, -1, -4, -6, -7
EPEER, EDEADLINE, ECANCELED, EINTERNAL = -21, -22, -23, -40

I8, U8, I32, I64, F16, BF16, F32, F64 = range(8)
SUM, AVG, PROD, MIN, MAX, BAND, BOR, BXOR = range(8)
ANY_SOURCE = -1

# torch before 2.0 has no class of its own for the errors of backends.
BackendError = getattr(dist, "DistBackendError", RuntimeError)


class InitOptions(Structure):
    """ls_init_options"""

    _fields_ = [
        ("size", c_size_t),
        ("backend", c_char_p),
        ("init_method", c_char_p),
        ("rank", c_int),
        ("world_size", c_int),
        ("transport", c_char_p),
        ("key_file", c_char_p),
        ("insecure", c_int),
        ("timeout_ms", c_int64),
        ("join_timeout_ms", c_int64),
        ("store", c_void_p),
        ("key", c_char_p),
        ("key_bytes", c_size_t),
    ]


StoreSet = CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_size_t)
StoreGet = CFUNCTYPE(c_int, c_void_p, c_char_p, c_int64, POINTER(c_void_p), POINTER(c_size_t))
StoreAdd = CFUNCTYPE(c_int, c_void_p, c_char_p, c_int64, POINTER(c_int64))
StoreClose = CFUNCTYPE(None, c_void_p)


class StoreCallbacks(Structure):
    """ls_store_callbacks"""

    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("arg", c_void_p),
        ("set", StoreSet),
        ("get", StoreGet),
        ("add", StoreAdd),
        ("close", StoreClose),
    ]


class WorkEnd(Structure):
    """ls_work_end"""

    _fields_ = [("status", c_int), ("text", c_char_p), ("source", c_int)]


WorkEndFn = CFUNCTYPE(None, c_void_p, POINTER(WorkEnd))
StackFn = CFUNCTYPE(None, c_void_p, c_void_p, c_size_t)

_handle = POINTER(c_void_p)
_counts = POINTER(c_size_t)
_reduction = [c_void_p, c_void_p, c_void_p, c_size_t, c_int, c_int]
_movement = [c_void_p, c_void_p, c_void_p, c_size_t, c_int]
_uneven = [c_void_p, c_void_p, c_void_p, _counts, c_int]
_parts = POINTER(c_void_p)
_message = [c_void_p, c_void_p, c_size_t, c_int, c_int, c_int, _handle]

_FUNCTIONS = {
    "ls_last_error": (c_char_p, []),
    "ls_version": (c_char_p, []),
    "ls_init": (c_int, [POINTER(InitOptions), _handle]),
    "ls_comm_destroy": (None, [c_void_p]),
    "ls_comm_abort": (None, [c_void_p, c_char_p]),
    "ls_comm_create_group": (c_int, [c_void_p, POINTER(c_int), c_int, c_char_p, c_int64, _handle]),
    "ls_comm_set_timeout": (None, [c_void_p, c_int64]),
    "ls_comm_set_site": (None, [c_char_p]),
    "ls_work_waited": (_handle, [_handle]),
    "ls_comm_set_stack": (c_int, [c_void_p, StackFn, c_void_p]),
    "ls_comm_status": (c_int, [c_void_p]),
    "ls_comm_rank": (c_int, [c_void_p]),
    "ls_comm_size": (c_int, [c_void_p]),
    "ls_comm_report_state": (c_int, [c_void_p]),
    "ls_comm_is_called": (c_int, [c_void_p]),
    "ls_comm_rejoin": (c_int, [c_void_p, c_int]),
    "ls_comm_check_seat": (c_int, [c_void_p]),
    "ls_comm_transport": (c_char_p, [c_void_p]),
    "ls_store_create": (c_int, [POINTER(StoreCallbacks), _handle]),
    "ls_store_close": (None, [c_void_p]),
    "ls_all_reduce": (c_int, _reduction + [_handle]),
    "ls_reduce": (c_int, _reduction + [c_int, _handle]),
    "ls_reduce_scatter": (c_int, _reduction + [_handle]),
    "ls_reduce_scatter_list": (
        c_int,
        [c_void_p, _parts, c_void_p, c_size_t, c_int, c_int, _handle],
    ),
    "ls_reduce_scatter_v": (c_int, _uneven + [c_int, _handle]),
    "ls_broadcast": (c_int, _movement + [c_int, _handle]),
    "ls_all_gather": (c_int, _movement + [_handle]),
    "ls_all_gather_v": (c_int, _uneven + [_handle]),
    "ls_all_gather_list": (c_int, [c_void_p, c_void_p, _parts, c_size_t, c_int, _handle]),
    "ls_gather": (c_int, _movement + [c_int, _handle]),
    "ls_gather_list": (c_int, [c_void_p, c_void_p, _parts, c_size_t, c_int, c_int, _handle]),
    "ls_scatter_list": (c_int, [c_void_p, _parts, c_void_p, c_size_t, c_int, c_int, _handle]),
    "ls_all_to_all_v": (c_int, [c_void_p, c_void_p, _counts, c_void_p, _counts, c_int, _handle]),
    "ls_all_to_all_list": (
        c_int,
        [c_void_p, _parts, _counts, _parts, _counts, c_int, _handle],
    ),
    "ls_barrier": (c_int, [c_void_p, _handle]),
    "ls_send": (c_int, _message),
    "ls_recv": (c_int, _message),
    "ls_work_wait": (c_int, [c_void_p]),
    "ls_work_wait_for": (c_int, [c_void_p, c_int64]),
    "ls_work_set_timeout": (None, [c_void_p, c_int64]),
    "ls_work_test": (c_int, [c_void_p]),
    "ls_work_source": (c_int, [c_void_p]),
    "ls_work_then": (c_int, [c_void_p, WorkEndFn, c_void_p]),
}


def _candidates() -> List[str]:
    """LOCKSTEP_LIBRARY, else the library in the installed package, else the loader's."""
    chosen = os.environ.get("LOCKSTEP_LIBRARY")
    if chosen:
        return [chosen]
    patterns = [os.path.join(folder, "lib", "liblockstep.so*") for folder in lockstep.__path__]
    return sorted(sum(map(glob.glob, patterns), [])) + ["liblockstep.so.0.1"]


def _load() -> ctypes.CDLL:
    errors = []
    for path in _candidates():
        try:
            library = ctypes.CDLL(path)
        except OSError as error:
            errors.append(str(error))
            continue
        for name, (result, arguments) in _FUNCTIONS.items():
            try:
                function = getattr(library, name)
            except AttributeError:
                raise ImportError(
                    f"{path} has no function {name}: it is older than this package; install both "
                    "from the same version"
                ) from None
            function.restype, function.argtypes = result, arguments
        return library
    raise ImportError(
        "liblockstep was not found; install it (ldconfig) or set LOCKSTEP_LIBRARY to the path of "
        "liblockstep.so: " + "; ".join(errors)
    )


lib = _load()


def last_error() -> str:
    """The text of this thread's last failing call."""
    text: bytes = lib.ls_last_error()
    return text.decode(errors="replace")


def failure(status: int, text: Optional[str] = None) -> Exception:
    """The exception for a failed call or operation; `text` is by default the last error's."""
    text = last_error() if text is None else text
    if status == EDEADLINE:
        # PyTorch's tests, and programs, search the text of a timeout for these words.
        return BackendError(f"lockstep: Timed out : {text}")
    return BackendError(f"lockstep: {text}")


def check(status: int) -> None:
    """Raises the exception for a status other than LS_OK."""
    if status != OK:
        raise failure(status)
