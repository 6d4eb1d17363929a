# SPDX-License-Identifier: Apache-2.0
"""Unmodified PyTorch programs under `lockstep run`: the agent hosts their store.

Skipped if PyTorch is missing.
"""
import os
import socket
import subprocess
import sys
import tempfile

TOOL = sys.argv[1]

DDP = """
import os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(torch.randn(16, 8)), torch.randn(16, 4))
    loss.backward()
    optimizer.step()
    if step == 5 and rank == 1 and "--raise" in sys.argv:
        raise ValueError("boom at step 5")
mine = torch.cat([p.detach().flatten() for p in model.parameters()])
everybodys = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
dist.all_gather(everybodys, mine)
assert all(torch.equal(mine, theirs) for theirs in everybodys)
print(f"rank {rank} of {dist.get_world_size()} has the parameters of all;",
      "agent store" if os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "True" else "own store")
dist.destroy_process_group()
"""

# Every operation of PyTorch's own class, on our store and on one that this process hosts.
STORE = """
import datetime, os, threading
import torch.distributed as dist

def answer(call):
    try:
        return call()
    except RuntimeError as error:
        return "timeout" if "imeout" in str(error) else "error"

def visit(store, other):
    late = datetime.timedelta(milliseconds=300)
    yield store.set("a", "one")
    yield store.get("a")
    yield [store.compare_set(*three)
           for three in (("a", "x", "y"), ("a", "one", "two"), ("none", "x", "y"), ("b", "", "z"))]
    yield [store.add("n", 5), store.add("n", -7), store.get("n")]
    yield store.get("b")
    yield [store.delete_key("b"), store.delete_key("b")]
    yield store.num_keys()
    yield store.set("big", "x" * 1000000)
    yield len(store.get("big"))
    yield answer(lambda: store.wait(["a", "n", "big"], late))
    yield answer(lambda: store.wait(["a", "late"], late))
    if hasattr(store, "append"):
        yield [store.append("list", "x"), store.append("list", "yz"), store.get("list")]
        yield store.multi_get(["a", "list"])
        yield store.multi_set(["m1", "m2"], ["1", "2"])
        yield store.get("m2")
    if hasattr(store, "check"):
        yield [store.check(["a", "n"]), store.check(["a", "none"])]
    if hasattr(store, "queue_push"):
        yield [store.queue_push("q", "1"), store.queue_push("q", "2"), store.queue_len("q")]
        yield [store.queue_pop("q"), store.queue_pop("q"), store.queue_len("q")]
    if hasattr(store, "list_keys"):
        yield sorted(store.list_keys())
    if hasattr(store, "barrier"):
        yield answer(lambda: store.barrier("barrier", 1, late))
        yield answer(lambda: store.barrier("barrier", 3, late))
        yield store.get("barrier")
    threading.Timer(0.2, lambda: other.set("soon", "x")).start()
    yield store.get("soon")

def compare(first, second):
    first, second = list(visit(*first)), list(visit(*second))
    assert first == second, f"{first}\\n{second}"
    print(f"all {len(first)} answers are those of PyTorch's own store")

def connect(port, is_master):
    return dist.TCPStore("127.0.0.1", port, 1, is_master, wait_for_workers=False,
                         timeout=datetime.timedelta(seconds=60))

port = int(os.environ["MASTER_PORT"])
own = connect(0, True)
compare((connect(port, False), connect(port, False)), (own, connect(own.port, False)))
# After a wait that timed out, what its key's arrival would have answered must not come.
ours, other = connect(port, False), connect(port, False)
assert answer(lambda: ours.wait(["stray"], datetime.timedelta(milliseconds=300))) == "timeout"
assert ours.add("counter", 1) == 1
other.set("stray", "x")
assert other.get("stray") == b"x"
assert ours.add("counter", 1) == 2 and ours.get("stray") == b"x"
print("in step after a timeout")
"""

# Each process group has keys of its own: PyTorch's keys repeat, so a rank may read the address of
# an earlier group.
AGAIN = """
import os
import torch
import torch.distributed as dist

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
for i in range(5):
    dist.init_process_group("gloo", store=dist.PrefixStore(f"group{i}", store), rank=rank,
                            world_size=world)
    sum = torch.tensor([float(rank + i)])
    dist.all_reduce(sum)
    assert sum.item() == 1 + 2 * i, sum
    dist.destroy_process_group()
print(f"rank {rank} has been in 5 groups")
"""

# A server of the script's own beside the store, with names that all nodes make alike.
OWN_SERVER = """
import datetime, os
import torch.distributed as dist

address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
own = dist.TCPStore(address, port + 3, size, is_master=rank == 0,
                    timeout=datetime.timedelta(seconds=30))
own.set(f"{port}/{rank}", str(rank))
print("all values:", [int(own.get(f"{port}/{i}")) for i in range(size)])
dist.barrier()
dist.destroy_process_group()
"""

OWN_ADDRESS = """
import os
os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", "9"
import torch.distributed as dist
dist.init_process_group("gloo")
"""


def find_python():
    """The first interpreter that has PyTorch."""
    check = ("import sys, torch.distributed as d; "
             "sys.exit(not (d.is_available() and hasattr(d, 'TCPStore')))")
    for python in ("python3", "/usr/bin/python3"):
        try:
            done = subprocess.run([python, "-c", check], capture_output=True, timeout=300)
            if done.returncode == 0:
                return python
        except OSError:
            pass
    print("skipped: no python3 here has torch.distributed (package python3-torch)")
    sys.exit(77)


PYTHON = find_python()


CLEAN = {k: v for k, v in os.environ.items()
         if not k.startswith(("LOCKSTEP_RANK", "RANK", "WORLD_SIZE", "MASTER_"))}


def begin(folder, script, *flags, **variables):
    """Starts a script under the tool; both streams come as stdout."""
    path = os.path.join(folder, "script.py")
    with open(path, "w") as f:
        f.write(script)
    return subprocess.Popen([TOOL, "run", *flags, path], text=True, stdin=subprocess.DEVNULL,
                            env={**CLEAN, "PYTHON_EXEC": PYTHON, "OMP_NUM_THREADS": "1",
                                 **variables},
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


# A process of PyTorch 2.15 sometimes aborts at its exit with this text when it uses a store that
# rank 0 hosts, under torchrun and without any launcher too.
ABORT_AT_EXIT = "terminate called without an active exception"


def run(script, *flags, code=0, ranks=2, arguments=(), may_abort=False):
    """Runs a script under the tool; the output of both streams.

    may_abort: PyTorch's abort is no failure.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "script.py")
        with open(path, "w") as f:
            f.write(script)
        command = [TOOL, "run", *flags, "--nproc-per-node", str(ranks), path, *arguments]
        done = subprocess.run(command, timeout=300, text=True, stdin=subprocess.DEVNULL,
                              env={**CLEAN, "PYTHON_EXEC": PYTHON, "OMP_NUM_THREADS": "1"},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if may_abort and done.returncode == 134 and ABORT_AT_EXIT in done.stdout:
        code = 134
    assert done.returncode == code, f"exit code {done.returncode}, not {code}\n{done.stdout}"
    return done.stdout


def expect(output, *parts):
    for part in parts:
        assert part in output, f"{part!r} is missing\n{output}"


def an_unmodified_ddp_script_meets_at_the_agents_store():
    output = run(DDP)
    for rank in range(2):
        expect(output, f"rank {rank}| rank {rank} of 2 has the parameters of all; agent store\n")


def without_the_agents_store_rank_0_hosts_one():
    output = run(DDP, "--store=none", may_abort=True)
    # The rank that aborts has printed its line; the other one may have been stopped before.
    rank = 1 if f"rank 1| {ABORT_AT_EXIT}" in output else 0
    expect(output, f"rank {rank}| rank {rank} of 2 has the parameters of all; own store\n")


def a_rank_that_raises_is_the_cause():
    output = run(DDP, code=1, arguments=["--raise"])
    report = output[output.index("lockstep: "):]
    expect(report, "lockstep: rank 1 (pid ", "exited with code 1\n")
    expect(output, "ValueError: boom at step 5\n")  # in its lines or in the report


def the_store_answers_as_pytorchs_own():
    expect(run(STORE, ranks=1), "answers are those of PyTorch's own store",
           "in step after a timeout")


def nodes_have_one_address_and_port_for_servers_of_the_script():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    with tempfile.TemporaryDirectory() as folder:
        nodes = [begin(folder, OWN_SERVER, "--nnodes", "2", "--node-rank", str(i), "--master-addr",
                       "127.0.0.1", "--master-port", port, "--insecure", "-n", "1")
             for i in range(2)]
        for node in nodes:
            output, _ = node.communicate(timeout=300)
            assert node.returncode == 0, output
            expect(output, "all values: [0, 1]\n")


def a_script_with_an_address_of_its_own_is_named():
    with tempfile.TemporaryDirectory() as folder:
        job = begin(folder, OWN_ADDRESS, "-n", "2", LOCKSTEP_LATE_MS="2000")
        for line in job.stdout:
            if "has loaded PyTorch" in line:
                break
        job.terminate()
        job.communicate(timeout=300)
    expect(line, "no rank has connected to PyTorch's store at 127.0.0.1 port ",
           "needs --store none\n")


def process_groups_with_keys_of_their_own_can_be_made_again():
    output = run(AGAIN)
    for rank in range(2):
        expect(output, f"rank {rank}| rank {rank} has been in 5 groups\n")


for test in (an_unmodified_ddp_script_meets_at_the_agents_store,
             without_the_agents_store_rank_0_hosts_one,
             a_rank_that_raises_is_the_cause, the_store_answers_as_pytorchs_own,
             nodes_have_one_address_and_port_for_servers_of_the_script,
             a_script_with_an_address_of_its_own_is_named,
             process_groups_with_keys_of_their_own_can_be_made_again):
    test()
    print(f"ok {test.__name__}", flush=True)
