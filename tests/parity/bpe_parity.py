#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bpe_parity.py PROGRAM: texts as tokens, ours against Hugging Face's `tokenizers`, with a
vocabulary that `tokenizers` trains on the licences of Debian.

Texts: the licences, then random ones of words, suffixes, numbers, white space and characters of all
of Unicode. Exit 77: skipped, with a reason.
"""

import glob
import os
import random
import subprocess
import sys
import tempfile
import unicodedata

try:
    from tokenizers import ByteLevelBPETokenizer
except ImportError as error:
    print(f"skipped: the Python package tokenizers is needed ({error})")
    sys.exit(77)

SEED = 17
LICENCES = "/usr/share/common-licenses"
PIECES = [
    "'s",
    "'t",
    "'re",
    "'ve",
    "'m",
    "'ll",
    "'d",
    "'S",
    " '",
    " ",
    "  ",
    "\n",
    "\t",
    "\r\n",
    "\u00a0",
    "\u2003",
    "\x1c",
    "\x85",
    "the",
    "Freedom",
    " licence",
    "1989",
    " 3",
    "\u0663",
    "\u00bd",
    "--",
    "...",
    " (",
    "<|endoftext|>",
    "\U0001f600",
    "na\u00efve",
    "\u6587\u5b57",
]


def licences():
    """The files that are UTF-8."""
    for path in sorted(glob.glob(f"{LICENCES}/*")):
        if not os.path.islink(path):
            try:
                with open(path, encoding="utf-8") as f:
                    yield f.read()
            except UnicodeDecodeError:
                pass


def random_character(rng):
    while True:
        c = chr(rng.choice([rng.randrange(0x250), rng.randrange(0x3000), rng.randrange(0x110000)]))
        if unicodedata.category(c) not in ("Cs", "Cn"):
            return c


def random_text(rng):
    return "".join(
        rng.choice(PIECES) if rng.random() < 0.7 else random_character(rng)
        for _ in range(rng.randrange(400))
    )


def our_ids(program, folder, text):
    with open(f"{folder}/text", "wb") as f:
        f.write(text.encode())
    command = [program, f"{folder}/vocab.json", f"{folder}/merges.txt", f"{folder}/text"]
    output = subprocess.run(command, check=True, timeout=60, capture_output=True).stdout
    return [int(line) for line in output.split()]


def main():
    program = sys.argv[1]
    rng = random.Random(SEED)
    texts = list(licences())
    with tempfile.TemporaryDirectory() as folder:
        theirs = ByteLevelBPETokenizer()
        theirs.train_from_iterator(texts, vocab_size=3000, show_progress=False)
        theirs.save_model(folder)
        texts += [random_text(rng) for _ in range(200)] + ["", "a" * 3000, " " * 3000, "ab" * 3000]
        n = 0
        for i, text in enumerate(texts):
            want = theirs.encode(text).ids
            assert our_ids(program, folder, text) == want, f"text {i} of seed {SEED}: {text[:80]!r}"
            n += len(want)
    print(f"{len(texts)} texts, {n} tokens, all equal")


if __name__ == "__main__":
    main()
