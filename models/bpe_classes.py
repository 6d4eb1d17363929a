#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bpe_classes.py > bpe_classes.inc: the characters beyond ASCII that are letters, numbers or white
space, as \\p{L}, \\p{N} and \\s of regular expressions have them, in ranges."""

import textwrap
import unicodedata

SPACES = {0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}
NAMES = {"L": "LETTER", "N": "NUMBER", "S": "SPACE"}


def kind(c):
    if c in SPACES:
        return "S"
    category = unicodedata.category(chr(c))[0]
    return category if category in "LN" else ""


def ranges():
    begin, current = 0, ""
    for c in range(0x80, 0x110001):
        this = kind(c) if c < 0x110000 else ""
        if this != current:
            if current:
                yield begin, c - 1, NAMES[current]
            begin, current = c, this


def main():
    items = " ".join(f"{{0x{a:X},0x{b:X},{name}}}," for a, b, name in ranges())
    print("/* SPDX-License-Identifier: Apache-2.0 */")
    print(f"/* Written by bpe_classes.py from Unicode {unicodedata.unidata_version}. */")
    print("/* clang-format off */")
    print(textwrap.fill(items, 100))


if __name__ == "__main__":
    main()
