# SPDX-License-Identifier: Apache-2.0
"""limited: what verify and bench share: commands that end in time, and results that are kept."""
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass

OUTPUT_MAX = 1 << 20  # characters of a command that are kept: the last ones
GRACE_S = 5  # from SIGTERM to SIGKILL


@dataclass
class Ended:
    """code: None if the limit ended the command. object: the last line that is a JSON object."""

    command: str
    code: int
    seconds: float
    output: str
    object: dict

    def why(self):
        """What went wrong, in a line."""
        lines = [line for line in self.output.splitlines() if line.strip()]
        last = lines[-1].strip()[:300] if lines else "no output"
        if self.code is None:
            return f"did not end within {self.seconds:.0f} s; last line: {last}"
        if self.code < 0:
            return f"ended by signal {-self.code}; last line: {last}"
        return f"exit code {self.code}: {last}"


class Job:
    """A command in a process group of its own; standard error is part of its output."""

    def __init__(self, command, environment=None):
        self.command = [str(word) for word in command]
        self.begin = time.monotonic()
        self.lines = []
        self.size = 0
        self.news = threading.Condition()
        self.process = subprocess.Popen(
            self.command,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self.news:
                self.lines.append(line)
                self.size += len(line)
                while self.size > OUTPUT_MAX and len(self.lines) > 1:
                    self.size -= len(self.lines.pop(0))
                self.news.notify_all()
        with self.news:
            self.news.notify_all()

    def wait_for(self, text, limit_s):
        """Whether a line with this text comes in time."""
        deadline = time.monotonic() + limit_s
        with self.news:
            while not any(text in line for line in self.lines):
                left_s = deadline - time.monotonic()
                if left_s <= 0 or (self.process.poll() is not None and not self.reader.is_alive()):
                    return False
                self.news.wait(min(left_s, 0.5))
        return True

    def _signal(self, number):
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass

    def end(self, limit_s):
        """Its result; after the limit the whole group is ended."""
        code = None
        try:
            code = self.process.wait(timeout=max(0.0, limit_s))
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=GRACE_S)
            except subprocess.TimeoutExpired:
                pass
        self._signal(signal.SIGKILL)  # what is left of the group
        self.process.wait()
        self.reader.join(timeout=GRACE_S)  # a process in another session may hold the pipe open
        with self.news:
            output = "".join(self.lines)
        seconds = time.monotonic() - self.begin
        return Ended(" ".join(self.command), code, seconds, output, last_object(output))


def run(command, limit_s, environment=None):
    """Raises OSError where the command cannot be started."""
    return Job(command, environment).end(limit_s)


def objects(output):
    """All lines that are JSON objects."""
    found = []
    for line in output.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def last_object(output):
    found = objects(output)
    return found[-1] if found else {}


def write_json(path, value):
    """The file is replaced at once, so that it is whole at any time."""
    folder = os.path.dirname(os.path.abspath(path))
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False, encoding="utf-8") as out:
        json.dump(value, out, indent=1)
    os.chmod(out.name, 0o644)
    os.replace(out.name, path)


def facts(build):
    """Card, driver and commit, as far as they can be found; "card" is missing without a card."""
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    found = {"time": time.strftime("%Y-%m-%d %H:%M:%S"), "machine": os.uname().machine}
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    commands = {
        "card": query,
        "lockstep": [os.path.join(build, "bin", "lockstep"), "--version"],
        # In a bundle the commit is in a file.
        "commit": ["sh", "-c", 'cat "$0/commit" 2>&- || git -C "$0" rev-parse HEAD', root],
    }
    for name, command in commands.items():
        try:
            ended = run(command, 60)
        except OSError:
            continue
        if ended.code == 0 and ended.output.strip():
            found[name] = ended.output.strip().splitlines()[0]
    return found
