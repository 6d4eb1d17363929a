#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""report_in_browser.py TOOL: the page of lockstep report in chromium, light and dark, wide and
narrow: no console messages, no line wider than the window, and a picture that is not empty."""
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

TOOL = sys.argv[1]
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
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


def pixels(path):
    """The rows of a PNG file of 8 bits a channel, as bytes, and the bytes of a pixel."""
    with open(path, "rb") as f:
        data = f.read()
    at, packed = 8, b""
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at:at + 8])
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", data[at + 8:at + 18])
        if kind == b"IDAT":
            packed += data[at + 8:at + 8 + size]
        at += 12 + size
    assert depth == 8 and colour in (2, 6), (depth, colour)
    step = 3 if colour == 2 else 4
    raw, rows, before = zlib.decompress(packed), [], bytearray(width * step)
    for y in range(height):
        start = y * (width * step + 1)
        how, row = raw[start], bytearray(raw[start + 1:start + 1 + width * step])
        for i in range(len(row)):
            a = row[i - step] if i >= step else 0
            b, c = before[i], before[i - step] if i >= step else 0
            near = min((abs(b - c), 0, a), (abs(a - c), 1, b), (abs(a + b - 2 * c), 2, c))[2]
            row[i] = (row[i] + (0, a, b, (a + b) // 2, near)[how]) & 255
        rows.append(row)
        before = row
    return rows, step


def browse(page, folder, dark, width, *options):
    result = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         "--no-first-run", f"--user-data-dir={folder}/profile", "--hide-scrollbars",
         f"--blink-settings=preferredColorScheme={0 if dark else 1}",
         f"--window-size={width},700", "--enable-logging=stderr", *options, f"file://{page}"],
        capture_output=True, text=True, timeout=120, cwd=folder)
    console = [line for line in result.stderr.splitlines() if "CONSOLE" in line]
    assert result.returncode == 0, result.stderr[-2000:]
    assert not console, console
    return result.stdout


def check(page, measured, folder, dark, width):
    text = browse(measured, folder, dark, width, "--dump-dom")
    title = text.split("<title>")[1].split("</title>")[0]
    words = title.replace(",", "").split()
    assert int(words[1]) <= int(words[3]), f"wider than the window: {title}"
    assert int(words[5]) >= 10, title
    browse(page, folder, dark, width, f"--screenshot={folder}/shot.png")
    rows, step = pixels(f"{folder}/shot.png")
    colours = {bytes(row[i:i + 3]) for row in rows[::7] for i in range(0, len(row), 5 * step)}
    mean = sum(sum(row[::step]) for row in rows) / sum(len(row) // step for row in rows)
    assert len(colours) > 20, f"{len(colours)} colours"
    assert mean < 90 if dark else mean > 160, f"dark {dark}: mean brightness {mean:.0f}"
    print(f"{'dark' if dark else 'light'}, {width} wide: {title}, {len(colours)} colours")


def main():
    if BROWSER is None:
        print("skipped: chromium is not installed")
        sys.exit(77)
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
