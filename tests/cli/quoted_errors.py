#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""quoted_errors.py SOURCES PAGE...: every message that the pages' tables quote is in the sources.

A message is what stands in backquotes in the first column; "..." stands for any text. Messages of
the system and of other programs are listed here.
"""
import os
import re
import sys

FOREIGN = {
    "Address already in use", "Connection refused", "Connection timed out", "No route to host",
    "Permission denied (publickey)", "Too many open files", "no space left on device", "nan",
    "--master-addr", "data", "val", "lockstep check", ".pth", ".pt", ".pth.tar",
    "Duplicate GPU detected",
    "libcudnn.so.9: cannot open shared object file",
    "init_process_group()", "was killed by signal 9 (SIGKILL)", "was killed by signal 7 (SIGBUS)",
}


def literals(folder):
    """The text of all string literals below the folder, adjacent ones joined: of C and Python."""
    for parent, _, names in os.walk(folder):
        for name in names:
            if name.endswith((".c", ".cc", ".h", ".py")):
                text = open(os.path.join(parent, name), errors="replace").read()
                text = re.sub(r'"\s*\n\s*"', "", text)
                yield from re.findall(r'"((?:[^"\\\n]|\\.)*)"', text)


def messages(page):
    """What the first column of the page's tables with three columns or more quotes."""
    for line in open(page):
        cells = line.split(" | ")
        if line.startswith("| ") and len(cells) >= 3:
            yield from re.findall(r"`([^`]*)`", cells[0])


sources, *pages = sys.argv[1:]
python = os.path.join(sources, os.pardir, "python", "lockstep")
known = "\n".join([*literals(sources), *literals(python)])
n_failed, n = 0, 0
for page in pages:
    for message in messages(page):
        pieces = [] if message in FOREIGN else re.split(r"\s*\.\.\.,?\s*", message)
        n += 1
        for piece in pieces:
            if piece and piece not in known:
                print(f'{page}: not in the sources: "{piece}" of `{message}`')
                n_failed += 1
if n < 30:
    print(f"only {n} messages on the pages")
sys.exit(1 if n_failed or n < 30 else 0)
