# SPDX-License-Identifier: Apache-2.0
"""recovery_torchft.py FOLDER RANKS: the network of recovery_torch.py under torchft, for
bench/recovery: a lighthouse with the options of torchft's README, and RANKS processes with a
replica each, started again when they end. The first rank of the quorum writes a line of
FOLDER/steps.jsonl for each step that is committed."""
import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta

LIGHTHOUSE = ["--min_replicas", "1", "--quorum_tick_ms", "100", "--join_timeout_ms", "10000"]


def train(folder, replica):
    import torch
    import torch.distributed as dist
    from recovery_torch import batch, network
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    torch.set_num_threads(1)
    torch.manual_seed(0)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    net = network()
    sgd = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)

    def load(state):
        net.load_state_dict(state["net"])
        sgd.load_state_dict(state["sgd"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=lambda: {"net": net.state_dict(), "sgd": sgd.state_dict()},
        replica_id=f"replica_{replica}",
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        timeout=timedelta(seconds=10),
    )
    ddp = DistributedDataParallel(manager, net)
    optimizer = Optimizer(manager, sgd)
    while True:
        step = manager.current_step()
        x, y = batch(step * 64 + replica)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(x), y).backward()
        optimizer.step()
        if manager.current_step() > step and manager.participating_rank() == 0:
            line = {"step": manager.current_step(), "ranks": manager.num_participants()}
            with open(os.path.join(folder, "steps.jsonl"), "a", encoding="utf-8") as f:
                f.write(json.dumps(line) + "\n")


def supervise(folder, ranks):
    port = 20000 + os.getpid() % 20000
    lighthouse = os.path.join(os.path.dirname(sys.executable), "torchft_lighthouse")
    env = dict(os.environ, TORCHFT_LIGHTHOUSE=f"http://127.0.0.1:{port}")
    head = subprocess.Popen([lighthouse, "--bind", f"127.0.0.1:{port}", *LIGHTHOUSE])
    command = [sys.executable, __file__, folder, "--rank"]
    workers = {}
    try:
        while True:
            for r in range(ranks):
                if r not in workers or workers[r].poll() is not None:
                    workers[r] = subprocess.Popen([*command, str(r)], env=env)
            time.sleep(0.01)
    finally:
        for process in [*workers.values(), head]:
            process.kill()
            process.wait()


def main():
    if sys.argv[2] == "--rank":
        train(sys.argv[1], int(sys.argv[3]))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    supervise(sys.argv[1], int(sys.argv[2]))


if __name__ == "__main__":
    main()
