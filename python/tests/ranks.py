# SPDX-License-Identifier: Apache-2.0
"""ranks.run(n, body): runs body(rank, n) in n forked processes, and shows what they print."""
import ctypes
import faulthandler
import os
import pickle
import shutil
import signal
import sys
import tempfile
import time
import traceback

DEADLINE_S = 120


def wait_for(condition):
    """Whether the condition becomes true before the deadline."""
    end = time.monotonic() + DEADLINE_S
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def end_with_parent():
    """Ends this process when the test is killed."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


class Job:
    """The processes of a job. `store` is the path for a FileStore."""

    def __init__(self, n, body):
        self.folder = tempfile.mkdtemp(prefix="lockstep-test-")
        self.store = os.path.join(self.folder, "store")
        self.n = n
        self.pids = [self._start(rank, body) for rank in range(n)]
        self.codes = {}

    def _path(self, kind, rank):
        return os.path.join(self.folder, f"{kind}{rank}")

    def _start(self, rank, body):
        sys.stdout.flush()
        pid = os.fork()
        if pid != 0:
            return pid
        code = 1
        try:
            end_with_parent()
            out = os.open(self._path("out", rank), os.O_WRONLY | os.O_CREAT, 0o600)
            os.dup2(out, 1)
            os.dup2(out, 2)
            faulthandler.enable()
            result = body(rank, self.n, self.store)
            with open(self._path("result", rank), "wb") as file:
                pickle.dump(result, file)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            import lockstep.torch

            lockstep.torch._join.close_all()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def kill(self, rank, number=signal.SIGKILL):
        os.kill(self.pids[rank], number)

    def output(self, rank):
        if not os.path.exists(self._path("out", rank)):
            return ""
        with open(self._path("out", rank), errors="replace") as file:
            return file.read()

    def wait(self):
        """Waits for all, and returns what each rank's body has returned; None of one that died."""
        end = time.monotonic() + DEADLINE_S
        while len(self.codes) < self.n and time.monotonic() < end:
            for rank in range(self.n):
                if rank not in self.codes:
                    pid, status = os.waitpid(self.pids[rank], os.WNOHANG)
                    if pid != 0:
                        self.codes[rank] = os.waitstatus_to_exitcode(status)
            time.sleep(0.005)
        for rank in range(self.n):
            if rank not in self.codes:
                self.kill(rank)
                os.waitpid(self.pids[rank], 0)
                self.codes[rank] = "deadline"
        return [self._result(rank) for rank in range(self.n)]

    def _result(self, rank):
        if self.codes[rank] != 0:
            return None
        with open(self._path("result", rank), "rb") as file:
            return pickle.load(file)

    def show(self):
        for rank in range(self.n):
            text = self.output(rank)
            print(f"--- rank {rank}, exit {self.codes.get(rank)}:\n{text}", file=sys.stderr)

    def remove(self):
        shutil.rmtree(self.folder)


def run(n, body):
    """The results of all ranks; fails if one of them fails."""
    job = Job(n, body)
    results = job.wait()
    if any(code != 0 for code in job.codes.values()):
        job.show()
        job.remove()
        raise AssertionError(f"exit codes of the ranks: {job.codes}")
    job.remove()
    return results


def join(store, rank, n, backend="lockstep", **options):
    """init_process_group() over a FileStore."""
    import torch.distributed as dist

    import lockstep.torch  # noqa: F401

    dist.init_process_group(
        backend, store=dist.FileStore(store, n), rank=rank, world_size=n, **options
    )
