#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""report_in_browser.py TOOL: the page of lockstep report in chromium, light and dark, wide and
narrow: no console messages, no line wider than the window, and a picture that is not empty."""
import json
import os
import shutil
import subprocess
import sys
import tempfile

import browser

TOOL = sys.argv[1]
MEASURE = """<script>document.title = 'width ' + document.documentElement.scrollWidth + ' of ' +
window.innerWidth + ', charts ' + document.querySelectorAll('svg path.line').length;</script>"""


def write_metrics(path, slower):
    run = {
        "command": "resnet --arch resnet18 --num_epochs 3 --metrics " + path * 3,
        "version": "0.1.0", "host": "node0", "cores": 8, "memory_bytes": 64 << 30,
        "device": "onednn", "ranks": 4, "batch_size": 32, "started": 1700000000,
    }
    with open(path, "w") as f:
        for i in range(1, 61):
            phases = [0.01, 0.2, 0.4, 0.05, 0.02]
            line = {
                "epoch": i // 20, "step": 20 * i, "loss": 2 / i + 0.1 * slower, "lr": 0.1,
                "samples_per_s": 1000 - 100 * slower + i, "top1": 1 - 1 / i, "top5": 1.0,
                "seconds": dict(zip(
                    ("data", "forward", "backward", "communication", "optimizer"), phases)),
                "rank_seconds": [[p * (1 + 0.3 * (r == 2)) for p in phases] for r in range(4)],
                "step_s": [0.03 + 0.001 * ((7 * i + k) % 11) for k in range(20)],
            }
            if i == 1:
                line["run"] = run
            if i % 20 == 0:
                line.update(test_samples=100, accuracy=1 - 1 / i, accuracy5=1.0, test_loss=1 / i)
            f.write(json.dumps(line) + "\n")


def check(page, measured, folder, dark, width):
    size = (width, 700)
    text = browser.browse(f"file://{measured}", folder, size, "--dump-dom", dark=dark)
    title = text.split("<title>")[1].split("</title>")[0]
    words = title.replace(",", "").split()
    assert int(words[1]) <= int(words[3]), f"wider than the window: {title}"
    assert int(words[5]) >= 10, title
    shot = f"{folder}/shot.png"
    browser.browse(f"file://{page}", folder, size, f"--screenshot={shot}", dark=dark)
    colours, mean = browser.colours_of(shot)
    assert colours > 20, f"{colours} colours"
    assert mean < 90 if dark else mean > 160, f"dark {dark}: mean brightness {mean:.0f}"
    print(f"{'dark' if dark else 'light'}, {width} wide: {title}, {colours} colours")


def main():
    browser.skip_without_browser()
    with tempfile.TemporaryDirectory() as folder:
        files = [f"{folder}/a.jsonl", f"{folder}/b.jsonl"]
        for i, path in enumerate(files):
            write_metrics(path, i)
        page = f"{folder}/page.html"
        subprocess.run([TOOL, "report", *files, "-o", page], check=True)
        with open(page) as f:
            text = f.read()
        measured = f"{folder}/measured.html"
        with open(measured, "w") as f:
            f.write(text.replace("</body>", MEASURE + "</body>"))
        for dark in (False, True):
            for width in (1280, 500):
                check(page, measured, folder, dark, width)
        if len(sys.argv) > 2:
            shutil.copy(f"{folder}/shot.png", sys.argv[2])


main()
