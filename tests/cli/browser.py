# SPDX-License-Identifier: Apache-2.0
"""browser.py: pages in chromium, and what their pictures look like."""
import shutil
import struct
import subprocess
import sys
import zlib

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")


def skip_without_browser():
    if BROWSER is None:
        print("skipped: chromium is not installed")
        sys.exit(77)


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


def browse(url, folder, size, *options, dark=False, is_ours=True):
    """Starts chromium with these options; what it prints. A page of ours writes no messages to the
    console."""
    result = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         "--no-first-run", f"--user-data-dir={folder}/profile", "--hide-scrollbars",
         f"--blink-settings=preferredColorScheme={0 if dark else 1}",
         f"--window-size={size[0]},{size[1]}", "--enable-logging=stderr", *options, url],
        capture_output=True, text=True, timeout=120, cwd=folder)
    console = [line for line in result.stderr.splitlines() if "CONSOLE" in line]
    assert result.returncode == 0, result.stderr[-2000:]
    assert not is_ours or not console, console
    return result.stdout


def colours_of(path):
    """How many colours a sample of the pixels has, and the mean brightness."""
    rows, step = pixels(path)
    colours = {bytes(row[i:i + 3]) for row in rows[::7] for i in range(0, len(row), 5 * step)}
    mean = sum(sum(row[::step]) for row in rows) / sum(len(row) // step for row in rows)
    return len(colours), mean
