# SPDX-License-Identifier: Apache-2.0
"""Joining a job over the store of torch.distributed, and the life of a group of liblockstep.

The library calls the store through functions (ls_store_create()), in the thread that joins. No
thread of Python is needed, and Ctrl-C ends the wait for ranks that do not join.
"""
from __future__ import annotations

import ctypes
import hashlib
import os
import secrets
import sys
import threading
import time
import weakref
from collections import deque
from typing import Any, Callable, Deque, Iterable, List, Optional, Sequence

from . import _lib
from ._lib import lib

POLL_S_MIN, POLL_S_MAX = 0.00005, 0.02


def _mark_of(key: str) -> str:
    return key + "/is set"


def set_key(store: Any, key: str, value: Any) -> None:
    """Sets a key for which other ranks wait with appears()."""
    store.set(key, value)
    if not hasattr(store, "check"):
        store.add(_mark_of(key), 1)


def remove_key(store: Any, key: str) -> None:
    """Removes what set_key() has set."""
    store.delete_key(key)
    if not hasattr(store, "check"):
        store.delete_key(_mark_of(key))


def _has(store: Any, key: str) -> bool:
    if hasattr(store, "check"):
        return bool(store.check([key]))
    # torch 1.13. Not wait() with a timeout: its client does not cancel the wait, and takes the late
    # answer for that of its next request. Not compare_set(): its result is made without the GIL.
    return bool(store.add(_mark_of(key), 0) > 0)


def appears(store: Any, key: str, deadline: Optional[float]) -> bool:
    """Whether set_key() sets the key before the deadline; None: waits without limit."""
    begin = time.monotonic()
    while not _has(store, key):
        now = time.monotonic()
        if deadline is not None and now >= deadline:
            return False
        # Not torch's wait(), which Ctrl-C does not end. A pause lasts an eighth of the time so far.
        time.sleep(min(max((now - begin) / 8, POLL_S_MIN), POLL_S_MAX))
    return True


class _Store:
    """torch's store as an ls_store. Freed by close() after the group that joined through it."""

    def __init__(self, store: Any) -> None:
        self.error: Optional[BaseException] = None  # the first exception in a function
        self._store = store
        self._value: Any = None  # what the last get() has returned
        self._functions = _lib.StoreCallbacks(
            ctypes.sizeof(_lib.StoreCallbacks),
            b"torch.distributed",
            None,
            _lib.StoreSet(self._set),
            _lib.StoreGet(self._get),
            _lib.StoreAdd(self._add),
            _lib.StoreClose(),
        )
        out = ctypes.c_void_p()
        _lib.check(lib.ls_store_create(ctypes.byref(self._functions), ctypes.byref(out)))
        self.handle = out.value

    def close(self) -> None:
        lib.ls_store_close(self.handle)
        # The functions refer to this object; without them the store is freed at once.
        self.handle = self._functions = self._store = None

    def _failed(self, error: BaseException) -> int:
        self.error = self.error or error
        return _lib.EIO if isinstance(error, Exception) else _lib.ECANCELED

    def _set(self, _arg: Any, key: bytes, value: int, size: int) -> int:
        try:
            set_key(self._store, key.decode(), ctypes.string_at(value, size))
        except BaseException as error:  # an exception cannot pass through C
            return self._failed(error)
        return _lib.OK

    def _get(self, _arg: Any, key: bytes, timeout_ms: int, value: Any, size: Any) -> int:
        deadline = None if timeout_ms < 0 else time.monotonic() + timeout_ms / 1000
        try:
            name = key.decode()
            if not appears(self._store, name, deadline):
                return _lib.ETIMEOUT
            data = self._store.get(name)
            self._value = ctypes.create_string_buffer(data, max(1, len(data)))
            value[0] = ctypes.addressof(self._value)
            size[0] = len(data)
        except BaseException as error:
            return self._failed(error)
        return _lib.OK

    def _add(self, _arg: Any, key: bytes, delta: int, out: Any) -> int:
        try:
            out[0] = self._store.add(key.decode(), delta)
        except BaseException as error:
            return self._failed(error)
        return _lib.OK


_live: "weakref.WeakSet[Comm]" = weakref.WeakSet()
_in_callback = threading.local()
DEEP_FRAMES = 200  # with so many, no further callback of a future is called inside another
PAUSE_S = 0.02  # for an outermost callback that waits for what is deferred
_later: Deque[Callable[[], None]] = deque()  # deferred callbacks
_deferred: List["Comm"] = []  # groups that were dropped inside a function of ls_work_then()


class Comm:
    """A group of liblockstep: `handle` is its ls_comm, None after close()."""

    def __init__(
        self,
        handle: int,
        rank: int,
        size: int,
        store: Optional[_Store] = None,
    ) -> None:
        self.handle: Optional[int] = handle
        self.rank, self.size = rank, size
        self.process = os.getpid()
        self._store = store
        self._ending = threading.RLock()  # close() waits for abort() of another thread
        _live.add(self)

    def abort(self, reason: str) -> None:
        """Fails all operations of the group on all its ranks. From any thread."""
        with self._ending:
            if self.handle is not None and self.process == os.getpid():
                lib.ls_comm_abort(self.handle, reason.encode(errors="replace"))

    def close(self) -> None:
        """Leaves the group. Pending operations fail, also those that other threads wait for. A
        forked child leaves its parent's alone."""
        if self.handle is None or self.process != os.getpid():
            self.handle = None
            return
        if in_callback():
            _deferred.append(self)
            return
        with self._ending:
            handle, self.handle = self.handle, None
        if handle is None:
            return
        lib.ls_comm_destroy(handle)
        if self._store is not None:
            self._store.close()

    def __del__(self) -> None:
        self.close()


def in_callback() -> bool:
    """Whether this thread runs a function of ls_work_then()."""
    return bool(getattr(_in_callback, "active", False))


def enter_callback(active: bool) -> bool:
    """Marks the thread: while a function of ls_work_then() runs, no group may be destroyed. Returns
    the mark before."""
    before = in_callback()
    _in_callback.active = active
    return before


def is_deep() -> bool:
    """Whether callbacks are nested so far that no further one may be: PyTorch calls a callback at
    once where its future is complete already, so a chain of them would nest without limit."""
    try:
        sys._getframe(DEEP_FRAMES)
    except ValueError:
        return False
    return True


def call_later(action: Callable[[], None]) -> None:
    """Calls it after the outermost callback, or, when that one waits for it or there is none, in a
    thread that is started for it."""
    _later.append(action)
    rescue = threading.Timer(PAUSE_S if in_callback() else 0, call_deferred)
    rescue.daemon = True
    rescue.start()


def call_deferred() -> None:
    """What call_later() has got; for the outermost callback, and threads outside of callbacks."""
    before = enter_callback(True)
    try:
        while _later:
            try:
                action = _later.popleft()
            except IndexError:  # another thread was faster
                break
            action()
    finally:
        enter_callback(before)


def close_deferred() -> None:
    """Closes the groups that could not be closed when they were dropped."""
    while _deferred and not in_callback():
        _deferred.pop().close()


def live_comms() -> Iterable[Comm]:
    """The groups of this process that are open."""
    return [comm for comm in list(_live) if comm.handle is not None]


before_close: List[Callable[[], None]] = []  # called by close_all()
_is_over = False  # the interpreter ends


def stay_if_over() -> None:
    """A daemon thread whose wait the end of the interpreter has ended does not go on: what it calls
    next may need the interpreter. Callbacks return, because the end waits for them."""
    if _is_over and threading.current_thread().daemon and not in_callback():
        threading.Event().wait()


def close_all() -> None:
    """At the end of the interpreter: afterwards the library calls no Python."""
    global _is_over
    for end in list(before_close):
        end()
    _is_over = True
    close_deferred()
    for comm in live_comms():
        comm.close()


def _key(store: Any, rank: int, timeout_ms: int) -> bytes:
    """The key of the job where the store carries it (LOCKSTEP_TORCH_KEY=store), else b"". A key
    that an earlier group has put there stays."""
    chosen = os.environ.get("LOCKSTEP_TORCH_KEY", "")
    if chosen not in ("", "store"):
        raise RuntimeError(f'LOCKSTEP_TORCH_KEY={chosen}: write "store", or unset it')
    if not chosen:
        return b""
    if rank == 0 and store.add("lockstep/keys", 1) == 1:
        set_key(store, "lockstep/key", secrets.token_hex(32))
    deadline = time.monotonic() + timeout_ms / 1000 if timeout_ms > 0 else None
    if not appears(store, "lockstep/key", deadline):
        raise _lib.BackendError(
            f"lockstep: rank 0 has put no key into the store in {timeout_ms} ms; is "
            "LOCKSTEP_TORCH_KEY set on all ranks?"
        )
    key: bytes = store.get("lockstep/key")
    return key


def join(store: Any, rank: int, size: int, timeout_ms: int) -> Comm:
    """Joins the group of all ranks that share `store`. Blocks until every rank has joined."""
    close_deferred()
    key = _key(store, rank, timeout_ms)
    relay = _Store(store)
    options = _lib.InitOptions(
        size=ctypes.sizeof(_lib.InitOptions),
        rank=rank,
        world_size=size,
        timeout_ms=timeout_ms,
        join_timeout_ms=timeout_ms,
        store=relay.handle,
        key=key or None,
        key_bytes=len(key),
    )
    out = ctypes.c_void_p()
    status = lib.ls_init(ctypes.byref(options), ctypes.byref(out))
    if status != _lib.OK:
        error = _lib.failure(status)
        relay.close()
        if relay.error is None or isinstance(relay.error, Exception):
            raise error from relay.error
        raise relay.error  # Ctrl-C, or the exit of a signal handler
    assert out.value is not None
    return Comm(out.value, rank, size, relay)


def join_launched(timeout_ms: int) -> Comm:
    """Joins the group of all ranks that `lockstep run` has started, which needs no store. In a
    process that was started in the place of a lost rank: a group of itself alone."""
    options = _lib.InitOptions(size=ctypes.sizeof(_lib.InitOptions), timeout_ms=timeout_ms)
    out = ctypes.c_void_p()
    _lib.check(lib.ls_init(ctypes.byref(options), ctypes.byref(out)))
    assert out.value is not None
    return Comm(out.value, lib.ls_comm_rank(out), lib.ls_comm_size(out))


_world: Optional["weakref.ReferenceType[Comm]"] = None  # that the default group joined


def join_world(store: Any, rank: int, size: int, timeout_ms: int) -> Comm:
    """As join(), for the default group, of which create_group() takes ranks."""
    global _world
    comm = join(store, rank, size, timeout_ms)
    _world = weakref.ref(comm)
    return comm


def create_group(
    ranks: Sequence[int], name: str, timeout_ms: int, parent: Optional[Comm] = None
) -> Optional[Comm]:
    """A group of ranks of `parent` (the default group), which shares its connections. Only these
    ranks call it. None: the default group is of another backend."""
    close_deferred()
    parent = parent or (_world() if _world is not None else None)
    if parent is None or parent.handle is None or not ranks or parent.rank not in ranks:
        return None
    out = ctypes.c_void_p()
    tag = hashlib.sha1(name.encode()).hexdigest().encode()
    array = (ctypes.c_int * len(ranks))(*ranks)
    _lib.check(
        lib.ls_comm_create_group(
            parent.handle, array, len(ranks), tag, timeout_ms, ctypes.byref(out)
        )
    )
    lib.ls_comm_set_timeout(out.value, timeout_ms)
    assert out.value is not None
    return Comm(out.value, list(ranks).index(parent.rank), len(ranks))
