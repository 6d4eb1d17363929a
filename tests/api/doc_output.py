#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""doc_output.py PAGE.md SECTION PROGRAM: runs a program of doc_program.py; it must print the
lines that the section shows, indented by four spaces, or nothing where it shows none."""
import re
import subprocess
import sys

page, section, program = sys.argv[1:]
with open(page, encoding="utf-8") as f:
    sections = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", f.read(), flags=re.S | re.M))
text = re.sub(r"^```c\n.*?^```$", "", sections[section], flags=re.S | re.M)
shown = [line[4:] for line in text.splitlines() if line.startswith("    ")]
done = subprocess.run([program], stdout=subprocess.PIPE, check=True, text=True)
if done.stdout.splitlines() != shown:
    raise SystemExit(f"{program} printed:\n{done.stdout}\nbut {page} shows:\n" + "\n".join(shown))
