# SPDX-License-Identifier: Apache-2.0
"""Starting the built programs, and looking at what they leave behind. Standard library only."""
import gzip
import json
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time

BIN = sys.argv[1]
DATA = "/usr/share/datasets/fashion-mnist"
ROUNDS = int(os.environ.get("LS_TEST_ROUNDS", "3"))
# Sanitized builds are many times slower than what deadlines in the issue are about.
SLOW = os.environ.get("LS_TEST_SLOW") == "1"


def program(name):
    return os.path.join(BIN, name)


def start(*command, env=None, **options):
    clean = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("LOCKSTEP_RANK", "RANK", "WORLD_SIZE", "LOCAL_RANK"))
    }
    clean.update(env or {})
    return subprocess.Popen(
        command,
        env=clean,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        **options,
    )


OUTPUT = {}


def await_text(process, *words, timeout=120):
    """Reads what it prints until there is a line with all these words."""
    end = time.monotonic() + timeout
    output = OUTPUT.get(process.pid, "")
    while not any(all(w in line for w in words) for line in output.splitlines()):
        left = end - time.monotonic()
        assert left > 0, f"{process.args} did not print {words} in {timeout} s\n{output}"
        if select.select([process.stdout], [], [], left)[0]:
            more = os.read(process.stdout.fileno(), 65536).decode(errors="replace")
            assert more, f"{process.args} ended without printing {words}\n{output}"
            output = OUTPUT[process.pid] = output + more


def finish(process, code=0, timeout=120):
    """Waits; a different exit code shows the output and fails."""
    output = OUTPUT.pop(process.pid, "")
    try:
        output = output + process.communicate(timeout=timeout)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        output = output + process.communicate()[0]
        raise AssertionError(f"{process.args} did not end in {timeout} s\n{output}") from None
    if code is not None:
        assert (
            process.returncode == code
        ), f"{process.args} ended with {process.returncode}, not {code}\n{output}"
    return output


def run(*command, code=0, timeout=120, **options):
    return finish(start(*command, **options), code, timeout)


def part_of_data(where, n):
    """A folder with the first n samples of each file of DATA."""
    os.mkdir(where)
    for name in os.listdir(DATA):
        with gzip.open(f"{DATA}/{name}") as whole:
            header = whole.read(16 if "idx3" in name else 8)
            samples = whole.read(n * (28 * 28 if "idx3" in name else 1))
        with gzip.open(f"{where}/{name}", "w", compresslevel=1) as part:
            part.write(header[:4] + struct.pack(">I", n) + header[8:] + samples)
    return where


def mnist(*flags, data=DATA):
    return [program("mnist"), "--data", data, *flags]


def launched(n, *command):
    return [program("lockstep"), "run", "--nproc-per-node", str(n), *command]


# On the CUDA device over host memory; the environment is fake_nccl().
OVER_NCCL = ("--device", "cudahost", "--backend", "nccl")


def fake_nccl():
    """The environment of programs whose NCCL is that of the tests; ctest sets the path."""
    return {"LOCKSTEP_NCCL_LIBRARY": os.environ["FAKE_NCCL_LIBRARY"]}


def tensors(path):
    """The bytes of each tensor of a safetensors file, by name."""
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header, data = json.loads(f.read(size)), f.read()
    return {k: data[slice(*v["data_offsets"])] for k, v in header.items() if k != "__metadata__"}


def environment(pid):
    try:
        with open(f"/proc/{pid}/environ", "rb") as f:
            return dict(e.split(b"=", 1) for e in f.read().split(b"\0") if b"=" in e)
    except (OSError, ValueError):
        return {}


def state(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


def ranks_of(launcher, timeout=20, want=1):
    """The processes of a launcher's job by rank, once there are `want` of them."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        found = {}
        for pid in descendants(launcher.pid):
            env = environment(pid)
            if b"LOCKSTEP_RANK" in env and state(pid) not in ("Z", ""):
                found.setdefault(int(env[b"LOCKSTEP_RANK"]), pid)
        if len(found) >= want:
            return found
        time.sleep(0.01)
    raise AssertionError(f"{want} ranks did not appear")


def descendants(pid):
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as f:
                    parents[int(entry)] = int(f.read().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                pass
    below, grew = {pid}, True
    while grew:
        more = {p for p, parent in parents.items() if parent in below} - below
        grew = bool(more)
        below |= more
    return below - {pid}


def job_of(pid):
    return environment(pid)[b"LOCKSTEP_JOB"]


def members(job):
    return [
        int(p)
        for p in os.listdir("/proc")
        if p.isdigit()
        and environment(int(p)).get(b"LOCKSTEP_JOB") == job
        and state(int(p)) not in ("Z", "")
    ]


def sockets_of(job):
    with open("/proc/net/unix") as f:
        return [line for line in f if job.decode() in line]


def assert_nothing_left(job, within=5):
    end = time.monotonic() + within
    while members(job) and time.monotonic() < end:
        time.sleep(0.05)
    left = members(job)
    assert not left, f"processes of job {job} live: {left}"
    assert not sockets_of(job)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class folder:
    """A temporary folder as a context."""

    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="lockstep-test-")
        return self.path

    def __exit__(self, *ignored):
        shutil.rmtree(self.path, ignore_errors=True)


def skip(why):
    print("skipped:", why)
    sys.exit(77)


def run_tests(tests, needs=DATA):
    if needs and not os.path.isdir(needs):
        skip("dataset-fashion-mnist is not installed")
    failed = 0
    for test in tests:
        begin = time.monotonic()
        try:
            test()
            print(f"ok      {test.__name__} ({time.monotonic() - begin:.1f} s)", flush=True)
        except AssertionError as error:
            failed += 1
            print(f"FAILED  {test.__name__}: {error}", flush=True)
    sys.exit(1 if failed else 0)
