#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""readme_program.py README.md EXAMPLE.c OUT.c: writes the page's C code to a file, to be compiled
as it stands. The page has one more block of C code, which must be the example as it is."""
import re
import sys

page, example, program = sys.argv[1:]
with open(page, encoding="utf-8") as text:
    blocks = re.findall(r"^```c\n(.*?)^```$", text.read(), flags=re.S | re.M)
with open(example, encoding="utf-8") as text:
    shown = text.read()
rest = [block for block in blocks if block != shown]
if len(blocks) != 2 or len(rest) != 1:
    raise SystemExit(f"{page}: {len(blocks)} blocks of C code, not {example} as it is and one more")
with open(program, "w", encoding="utf-8") as out:
    out.write(rest[0])
