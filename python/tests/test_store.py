# SPDX-License-Identifier: Apache-2.0
"""Keys of a torch store that are set while a rank waits for them. LS_TEST_TOOL: the tool."""
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from datetime import timedelta

import ranks
import torch.distributed as dist
from lockstep.torch import _join

KEYS = 1000
LIMIT = timedelta(seconds=ranks.DEADLINE_S)


def set_keys(store, seed):
    pauses = random.Random(seed)
    for i in range(KEYS):
        time.sleep(pauses.random() * 0.003)
        _join.set_key(store, f"key {i}", f"value {i}")


def read_keys(store):
    for i in range(KEYS):
        assert _join.appears(store, f"key {i}", time.monotonic() + ranks.DEADLINE_S), i
        assert store.get(f"key {i}") == f"value {i}".encode(), i


def be_a_rank(seed):
    """Under lockstep run, whose agent hosts the store."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.PrefixStore("keys", dist.TCPStore(address, port, 2, False, LIMIT, False))
    if os.environ["RANK"] == "0":
        set_keys(store, seed)
    else:
        read_keys(store)


class Keys(unittest.TestCase):
    def setUp(self):
        self.seed = random.randrange(1 << 32)
        print(f"seed {self.seed}")

    def meet(self, writer, reader):
        thread = threading.Thread(target=set_keys, args=(writer, self.seed), daemon=True)
        thread.start()
        read_keys(reader)
        thread.join()

    def test_of_a_tcp_store(self):
        host = dist.TCPStore("127.0.0.1", 0, 2, True, LIMIT, False)
        client = dist.TCPStore("127.0.0.1", host.port, 2, False, LIMIT, False)
        self.meet(dist.PrefixStore("keys", host), dist.PrefixStore("keys", client))

    def test_of_a_file_store(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "store")
            self.meet(dist.FileStore(path, 2), dist.FileStore(path, 2))

    def test_of_the_launcher(self):
        command = [os.environ["LS_TEST_TOOL"], "run", "-n", "2", sys.executable, __file__]
        done = subprocess.run(command + ["rank", str(self.seed)], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=2 * ranks.DEADLINE_S)
        self.assertEqual(done.returncode, 0, done.stdout)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        be_a_rank(int(sys.argv[2]))
    else:
        unittest.main(verbosity=2)
