#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""readme_program.py README.md OUT.c: writes the page's C code to a file, to be compiled as it
stands."""
import re
import sys

with open(sys.argv[1], encoding="utf-8") as page:
    blocks = re.findall(r"^```c\n(.*?)^```$", page.read(), flags=re.S | re.M)
if len(blocks) != 1:
    raise SystemExit(f"{sys.argv[1]}: {len(blocks)} blocks of C code, not 1")
with open(sys.argv[2], "w", encoding="utf-8") as out:
    out.write(blocks[0])
