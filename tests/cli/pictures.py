#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pictures.py TOOL PROGRAM [FOLDER]: a training run as lockstep top, TensorBoard and Prometheus
show it: each must have its numbers, and a picture that is not empty. FOLDER: keeps the pictures,
which are those of docs/. PROGRAM is mnist. Needs chromium; without tmux, TensorBoard (for the
Python of LS_TEST_PYTHON) or Prometheus their part is left out, with a line that says so."""
import html
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

import browser

TOOL, PROGRAM = sys.argv[1:3]
os.environ["PATH"] = os.path.dirname(os.path.abspath(PROGRAM)) + ":" + os.environ["PATH"]
DATA = "/usr/share/datasets/fashion-mnist"
PYTHON = os.environ.get("LS_TEST_PYTHON", sys.executable)
DEADLINE_S = 180  # against hanging
SGR = {"1": "font-weight:bold", "2": "opacity:.6", "4": "text-decoration:underline",
       "7": "color:#fff;background:#222"}
ATTRIBUTE = "\x1b\\[[0-9;]*m"
RATE = "sum(rate(lockstep_rank_samples_total[10s])) by (rank)"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(what, found):
    """The first true result of found()."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        result = found()
        if result:
            return result
        time.sleep(0.2)
    raise AssertionError(f"after {DEADLINE_S} s: no {what}")


def fetch(url):
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.read().decode()
    except OSError:
        return ""


class Watch:
    """A job, and the processes that look at it."""

    def __init__(self, folder):
        self.folder = folder
        self.port = free_port()
        self.processes = []
        self.start([TOOL, "run", "-n", "2", "--rdzv-id", "night", "--metrics-port", str(self.port),
                    os.path.basename(PROGRAM), "--data", DATA, "--epochs", "100", "--tensorboard",
                    f"{folder}/events"])

    def start(self, command):
        log = open(f"{self.folder}/{os.path.basename(command[0])}.log", "w")
        self.processes.append(subprocess.Popen(command, stdout=log, stderr=log))

    def end(self):
        for p in reversed(self.processes):
            p.send_signal(signal.SIGTERM)
            p.wait(timeout=DEADLINE_S)

    def job(self):
        result = subprocess.run([TOOL, "top", "--once", "--json", str(self.processes[0].pid)],
                                capture_output=True, text=True)
        return json.loads(result.stdout) if result.returncode == 0 else {"ranks": []}

    def shoot(self, name, url, size, *options, times=1):
        """Of several pictures the one with the most in it: some pages are drawn after loading."""
        path = f"{self.folder}/{name}.png"
        shots = [f"{self.folder}/shot{i}.png" for i in range(times)]
        for shot in shots:
            browser.browse(url, self.folder, size, f"--screenshot={shot}", *options, is_ours=False)
        shutil.copy(max(shots, key=os.path.getsize), path)
        colours, _ = browser.colours_of(path)
        assert colours > 20, f"{name}: {colours} colours"
        print(f"{name}: {colours} colours")


def as_page(screen):
    """A terminal's text with its attributes as HTML."""
    body, codes = "<span>", []
    for part in re.split(f"({ATTRIBUTE})", screen):
        if part.startswith("\x1b["):
            for code in part[2:-1].split(";"):
                codes = [] if code in ("", "0") else codes + [code]
            style = ";".join(SGR.get(code, "") for code in codes)
            body += f"</span><span style='{style}'>"
        else:
            body += html.escape(part)
    return ("<!doctype html><meta charset=utf-8><style>body{margin:8px;background:#fff}"
            "pre{margin:0;font:14px/17px 'DejaVu Sans Mono',monospace}</style>"
            f"<pre>{body}</span></pre>")


def look_at_top(watch):
    if shutil.which("tmux") is None:
        print("top: left out, tmux is not installed")
        return
    tmux = ["tmux", "-L", f"lockstep-{os.getpid()}"]
    subprocess.run([*tmux, "new-session", "-d", "-x", "80", "-y", "24",
                    f"{TOOL} top {watch.processes[0].pid}"], check=True)

    def screen():
        text = subprocess.run([*tmux, "capture-pane", "-p", "-e"], capture_output=True, text=True)
        return text.stdout if "SAMPLES/S" in text.stdout else ""

    try:
        wait_for("table of ranks on the terminal", screen)
        time.sleep(2)  # for the picture only: rates since the last view, not since the start
        text = screen()
    finally:
        subprocess.run([*tmux, "kill-server"])
    rows = re.findall("^[ !] +[01] ", re.sub(ATTRIBUTE, "", text), re.M)
    assert len(rows) == 2, text
    page = f"{watch.folder}/top.html"
    with open(page, "w") as f:
        f.write(as_page("\n".join(text.splitlines())))
    watch.shoot("top", f"file://{page}", (700, 430))


def look_at_tensorboard(watch):
    if subprocess.run([PYTHON, "-c", "import tensorboard"], capture_output=True).returncode != 0:
        print(f"TensorBoard: left out, {PYTHON} has none")
        return
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    watch.start([PYTHON, "-m", "tensorboard.main", "--logdir", f"{watch.folder}/events", "--port",
                 str(port), "--host", "127.0.0.1", "--reload_interval", "5"])
    wait_for("loss in TensorBoard",
             lambda: '"loss/train"' in fetch(f"{url}/data/plugin/scalars/tags"))
    watch.shoot("tensorboard", f"{url}/?darkMode=false#scalars&tagFilter=loss%2Ftrain",
                (1280, 640), "--virtual-time-budget=20000",
                "--run-all-compositor-stages-before-draw", times=3)


def look_at_prometheus(watch):
    if shutil.which("prometheus") is None:
        print("Prometheus: left out, it is not installed")
        return
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    config = f"{watch.folder}/prometheus.yml"
    with open(config, "w") as f:
        json.dump({"global": {"scrape_interval": "1s"}, "scrape_configs": [
            {"job_name": "lockstep",
             "static_configs": [{"targets": [f"127.0.0.1:{watch.port}"]}]}]}, f)
    watch.start(["prometheus", f"--config.file={config}",
                 f"--storage.tsdb.path={watch.folder}/tsdb",
                 f"--web.listen-address=127.0.0.1:{port}"])
    query = urllib.parse.quote(RATE)

    def rates():
        answer = json.loads(fetch(f"{url}/api/v1/query?query={query}") or '{"data":{"result":[]}}')
        values = [float(r["value"][1]) for r in answer["data"]["result"]]
        return len(values) == 2 and min(values) > 0

    wait_for("rates of both ranks in Prometheus", rates)
    time.sleep(20)  # for the picture only: more points
    watch.shoot("prometheus", f"{url}/graph?g0.expr={query}&g0.tab=0&g0.range_input=30s",
                (1280, 840), "--virtual-time-budget=8000")


def main():
    browser.skip_without_browser()
    if not os.path.isdir(DATA):
        print("skipped: dataset-fashion-mnist is not installed")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        watch = Watch(folder)
        try:
            wait_for("training steps", lambda: any(r.get("step", 0) > 50
                                                   for r in watch.job()["ranks"]))
            look_at_prometheus(watch)
            look_at_tensorboard(watch)
            look_at_top(watch)
        finally:
            watch.end()
        for name in ("top", "tensorboard", "prometheus"):
            if len(sys.argv) > 3 and os.path.exists(f"{folder}/{name}.png"):
                shutil.copy(f"{folder}/{name}.png", sys.argv[3])


main()
