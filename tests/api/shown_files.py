#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""shown_files.py PAGE.md FILE...: the page shows each file whole, as a block of C code, and has a
link to it."""
import os
import re
import sys

page, *files = sys.argv[1:]
with open(page, encoding="utf-8") as f:
    text = f.read()
blocks = re.findall(r"^```c\n(.*?)^```$", text, flags=re.S | re.M)
failed = 0
for path in files:
    with open(path, encoding="utf-8") as f:
        shown = f.read() in blocks
    link = f"]({os.path.relpath(path, os.path.dirname(page))})" in text
    if not shown or not link:
        print(f"{page}: {'no link to' if shown else 'does not show'} {path} as it is")
        failed = 1
sys.exit(failed)
