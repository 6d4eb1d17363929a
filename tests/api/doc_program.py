#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""doc_program.py PAGE.md SECTION OUT.c: writes the C code of a section, one program in several
blocks, to a file, to be compiled as it stands."""
import re
import sys

page, section, out = sys.argv[1:]
with open(page, encoding="utf-8") as f:
    sections = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", f.read(), flags=re.S | re.M))
blocks = re.findall(r"^```c\n(.*?)^```$", sections[section], flags=re.S | re.M)
if not blocks:
    raise SystemExit(f"{page}: section {section} has no C code")
with open(out, "w", encoding="utf-8") as f:
    f.write("\n".join(blocks))
