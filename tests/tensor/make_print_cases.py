#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_print_cases.py OUT.h: writes tensors and the text that NumPy prints of them."""
import sys

import numpy as np

nan, inf = np.nan, np.inf
VALUES = [
    ("f4", (3,), [1, 2.5, -3]), ("f4", (2, 2), [1, 10, 100, 0.1]), ("f4", (2,), [1e-5, 1]),
    ("f4", (2,), [1e9, -2.5e9]), ("f4", (4,), [nan, 1, inf, -inf]), ("f4", (1,), [nan]),
    ("f8", (2,), [1 / 3, 2 / 3]), ("f4", (), [1.5]), ("i8", (), [-7]), ("f4", (), [2]),
    ("f2", (2,), [0.1, 0.2]), ("f8", (2,), [1e-300, 1e10]), ("f4", (2,), [-0.0, 0]),
    ("i8", (2,), [-(2.0**63), 5]), ("f4", (2,), [16777216, 1]), ("f4", (2,), [-inf, 2.5]),
    ("f4", (2,), [nan, 1e-7]), ("f4", (1,), [67108872]), ("f8", (2,), [9.999999999, 1]),
    ("f4", (2,), [0.0001, 0.1]), ("f4", (0, 3), []), ("i1", (3,), [-128, 0, 127]),
    ("f2", (2,), [65504, 6e-8]), ("f4", (2, 1), [0, 0]), ("f8", (3,), [0.1, 100, 100.1]),
]
STEPS = [
    ("i4", (40,), -300, 37), ("u1", (2, 3, 4), 0, 1), ("i8", (2000,), 0, 1),
    ("f4", (30, 40), 0, 0.125), ("f4", (20,), 0, 0.0625), ("f4", (10, 10, 15), 0, 1),
    ("f8", (7, 200), -1, 0.001), ("f4", (300,), 0, 0.1), ("u1", (1000,), 7, 0),
    ("f4", (1, 1, 1001), 0, 1e6), ("i4", (2, 2, 2, 2), 0, -1), ("f4", (3, 25), 1e-6, 0.5),
]
TYPES = {"f2": "F16", "f4": "F32", "f8": "F64", "i1": "I8", "u1": "U8", "i4": "I32", "i8": "I64"}


def number(x):
    if x != x:
        return "NAN"
    return ("-" if x < 0 else "") + "HUGE_VAL" if abs(x) == inf else repr(float(x))


def case(type_name, dims, values, start, step):
    n = int(np.prod(dims))
    numbers = values if values is not None else [start + step * i for i in range(n)]
    text = str(np.array(numbers, dtype=type_name).reshape(dims)).split("\n")
    ends = ["\\n"] * (len(text) - 1) + [""]
    lines = "\n".join(f'     "{line}{end}"' for line, end in zip(text, ends))
    given = "{" + ", ".join(map(number, values or [0])) + "}"
    shape = "{" + ", ".join(map(str, dims or [0])) + "}"
    has_values = int(values is not None)
    fields = [f"LS_{TYPES[type_name]}", len(dims), shape, has_values, given, start, step]
    return "    {" + ", ".join(map(str, fields)) + f",\n{lines}}},\n"


with open(sys.argv[1], "w", encoding="utf-8") as f:
    f.write("/* SPDX-License-Identifier: Apache-2.0 */\n")
    f.write(f"/* print_cases.h - made by make_print_cases.py with NumPy {np.__version__}. */\n")
    f.write("/* clang-format off */\nstatic const print_case print_cases[] = {\n")
    f.writelines(case(t, d, v, 0, 0) for t, d, v in VALUES)
    f.writelines(case(t, d, None, start, step) for t, d, start, step in STEPS)
    f.write("};\n")
