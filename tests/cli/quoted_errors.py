#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""quoted_errors.py PAGE SOURCES: every message that the tables of the page quote is in the sources.

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
    "init_process_group()", "was killed by signal 9 (SIGKILL)", "was killed by signal 7 (SIGBUS)",
}


def literals(folder):
    """The text of all string literals below the folder, adjacent ones joined."""
    for parent, _, names in os.walk(folder):
        for name in names:
            if name.endswith((".c", ".cc", ".h")):
                text = open(os.path.join(parent, name), errors="replace").read()
                text = re.sub(r'"\s*\n\s*"', "", text)
                yield from re.findall(r'"((?:[^"\\\n]|\\.)*)"', text)


page, sources = sys.argv[1:]
known = "\n".join(literals(sources))
failed, n = [], 0
for line in open(page):
    cells = line.split(" | ")
    if not line.startswith("| ") or len(cells) < 3:
        continue
    for message in re.findall(r"`([^`]*)`", cells[0]):
        pieces = [] if message in FOREIGN else re.split(r"\s*\.\.\.,?\s*", message)
        n += 1
        failed += [f'"{piece}" of `{message}`' for piece in pieces if piece and piece not in known]
for text in failed:
    print(f"{page}: not in the sources: {text}")
if n < 30:
    print(f"only {n} messages on the page")
sys.exit(1 if failed or n < 30 else 0)
