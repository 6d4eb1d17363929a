# SPDX-License-Identifier: Apache-2.0
"""netlab.py: the machines of bench/plan and bench/local_sgd: network namespaces of this host, made
by tests/harness/netlab.sh, with a network that has a rate and a round trip, and one without limit.
"""
import collections
import os
import re
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT = os.path.join(HERE, "..", "tests", "harness", "netlab.sh")
LINK = re.compile(r"(\d+)([MG])bit(?:\+(\d+)ms)?")
DEADLINE_S = 3600
AFTER_FAILURE_S = 30  # for the others to end, with a message

Network = collections.namedtuple("Network", "interface prefix")  # machine i has PREFIX.(10+i)


class Lab:
    """n machines. `link`: the rate of the network `limited`, as 100Mbit, or with a round trip
    100Mbit+20ms. `problem`: why there are none, else empty."""

    free = Network("eth0", "10.77.0")

    def __init__(self, link, n, script=SCRIPT):
        self.n, self.script = n, script
        made = subprocess.run(
            [script, "up", str(n), "--owner", str(os.getpid())], capture_output=True, text=True
        )
        self.problem = made.stderr.strip() if made.returncode else ""
        self.name = made.stdout.strip()
        self.delays = None
        if self.problem:
            return
        self.folder = tempfile.TemporaryDirectory()
        self.key = os.path.join(self.folder.name, "key")
        with open(self.key, "w", opener=lambda p, f: os.open(p, f, 0o600)) as file:
            file.write(os.urandom(32).hex() + "\n")
        rate, unit, trip_ms = LINK.fullmatch(link).groups()
        bytes_per_ms = int(rate) * {"M": 125, "G": 125000}[unit]
        if trip_ms:
            self._delay(1000 * bytes_per_ms, float(trip_ms) / 2000)
            return
        self.limited = Network("eth1", "10.78.0")
        for i in range(n):
            self._shape(f"{self.name}-{i}", "eth1", link, bytes_per_ms)
            self._shape(f"{self.name}-sw", f"slow{i}", link, bytes_per_ms)

    def _delay(self, bytes_per_s, delay_s):
        self.limited = Network("delayed0", "10.81.0")
        command = [os.path.join(HERE, "delayed_network.py"), str(bytes_per_s), str(delay_s)]
        command += [f"{self.name}-{i}" for i in range(self.n)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.delays = subprocess.Popen(command, text=True, **pipes)
        if self.delays.stdout.readline() != "ready\n":
            self.problem = self.delays.stderr.read().strip().splitlines()[-1]

    def _shape(self, namespace, device, rate, bytes_per_ms):
        burst = str(max(16384, 2 * bytes_per_ms))
        shape = ["tbf", "rate", rate.lower(), "burst", burst, "latency", "50ms"]
        command = ["tc", "-n", namespace, "qdisc", "replace", "dev", device, "root"] + shape
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            self.problem = f"{' '.join(shape)}: {done.stderr.strip()}"

    def launched(self, tool, command, n=None, network=None):
        """The commands that start one rank on each of the first n machines."""
        n, network = n or self.n, network or self.limited
        launcher = [tool, "run", "--nnodes", str(n), "--nproc-per-node", "1"]
        launcher += ["--net", f"{network.prefix}.0/24", "--master-addr", f"{network.prefix}.10"]
        launcher += ["--master-port", "29555", "--node-rank"]
        return [launcher + [str(i)] + command for i in range(n)]

    def run(self, commands, watch=lambda: None, **environment):
        """Runs command i on machine i; what all of them print. Calls watch() until they have ended.
        Ends the program if one of them fails."""
        environment = dict(os.environ, LS_NETLAB=self.name, LOCKSTEP_KEY_FILE=self.key,
                           **environment)
        outputs = [tempfile.TemporaryFile("w+", dir=self.folder.name) for _ in commands]
        jobs = [
            subprocess.Popen([self.script, "exec", str(i)] + command, env=environment,
                             stdout=output, stderr=subprocess.STDOUT)
            for i, (command, output) in enumerate(zip(commands, outputs))
        ]
        until = time.monotonic() + DEADLINE_S
        while any(job.poll() is None for job in jobs) and time.monotonic() < until:
            if any(job.returncode for job in jobs):
                until = min(until, time.monotonic() + AFTER_FAILURE_S)
            watch()
            time.sleep(0.01)
        text = ""
        for output in outputs:
            with output:
                output.seek(0)
                text += output.read()
        if any(job.returncode != 0 for job in jobs):
            sys.exit(f"{os.path.basename(sys.argv[0])}: {' '.join(commands[0])} failed:\n{text}")
        return text

    def sent(self, i, network):
        """Bytes that machine i has sent."""
        path = f"/sys/class/net/{network.interface}/statistics/tx_bytes"
        command = ["ip", "netns", "exec", f"{self.name}-{i}", "cat", path]
        return int(subprocess.run(command, check=True, capture_output=True).stdout)

    def close(self):
        if self.delays is not None:
            self.delays.communicate()  # closes its stdin
        if self.name:
            subprocess.run([self.script, "down", self.name], check=True)
