# SPDX-License-Identifier: Apache-2.0
"""A DDP script gives the same parameters under every launcher. LS_TEST_TOOL: the tool lockstep."""
import os
import re
import socket
import subprocess
import sys
import unittest

import ranks
import torch

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT = os.path.join(HERE, "train.py")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def hashes(outputs):
    found = re.findall(r"parameters (\w+) (\w+)", "".join(outputs))
    return [digest for digest, _ in found], {kind for _, kind in found}


def launch(command, limit_s=ranks.DEADLINE_S, **variables):
    done = subprocess.run(
        command,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit_s,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def by_variables(backend, **variables):
    port = str(free_port())
    processes = [
        subprocess.Popen(
            [sys.executable, SCRIPT, backend],
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                **variables,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=ranks.DEADLINE_S)[0] for process in processes]
    assert all(process.returncode == 0 for process in processes), outputs
    return outputs


class Launch(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.expected, _ = hashes(by_variables("gloo"))
        assert len(cls.expected) == 2, cls.expected

    def check(self, outputs):
        found, kinds = hashes(outputs)
        self.assertEqual(found, self.expected)
        self.assertNotIn("ProcessGroupGloo", kinds)

    def test_every_launcher(self):
        self.check(by_variables("lockstep"))
        arguments = ["--nproc_per_node", "2", SCRIPT, "lockstep"]
        port = ["--master_port", str(free_port())]
        self.check([launch([sys.executable, "-m", "torch.distributed.run", *port, *arguments])])
        tool = os.environ.get("LS_TEST_TOOL")
        if tool:
            run = [tool, "run", "--nproc-per-node", "2", sys.executable, SCRIPT, "lockstep"]
            self.check([launch(run)])

    def test_selftest(self):
        output = launch([sys.executable, "-m", "lockstep.torch.selftest"])
        self.assertIn("all is well on 2 ranks", output)
        self.assertIn("a killed rank was named", output)

    def test_script_that_uses_gloo(self):
        program = (
            "import runpy, sys, lockstep; lockstep.load_with_torch();"
            f"sys.argv = [{SCRIPT!r}, 'gloo']; runpy.run_path({SCRIPT!r}, run_name='__main__')"
        )
        arguments = ["--nproc_per_node", "2", "--no_python", sys.executable, "-c", program]
        command = [sys.executable, "-m", "torch.distributed.run"]
        command += ["--master_port", str(free_port()), *arguments]
        self.check([launch(command, LOCKSTEP_TORCH_REPLACE="gloo")])


if __name__ == "__main__":
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}")
    unittest.main(verbosity=2)
