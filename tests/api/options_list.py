#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""options_list.py INCLUDE-FOLDER OUT.inc: writes a row OPTIONS(type, last member) for each options
struct of the public headers."""
import sys

import headers

_, options = headers.read(sys.argv[1])
if not options:
    raise SystemExit("options_list.py: the headers have no options struct")
with open(sys.argv[2], "w", encoding="utf-8") as f:
    f.writelines(f"OPTIONS({o.name}, {o.members[-1]})\n" for o in options)
