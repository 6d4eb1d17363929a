#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""readme.py ROOT: README.md is one page that leads to all others, and its figures are recorded.

Its commands are tried by commands.py. The links of all pages are followed here, with the headings
that they name, and every ls_ function that docs/ names is one of the public headers.
"""
import glob
import os
import re
import subprocess
import sys

ROOT = os.path.abspath(sys.argv[1])
LINES_MOST = 130
ELSEWHERE = ("src/comm/backends/NAME/", "examples/imagenet/main.py")  # a placeholder; PyTorch's
failed = 0


def fail(text):
    global failed
    failed = 1
    print(text)


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def without_code(text):
    return re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M)


def anchors_of(path):
    """The names that headings have, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", without_code(read(path)), flags=re.M)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return [heading.replace(" ", "-") for heading in plain]


def check_links(path):
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(read(path))):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = os.path.normpath(os.path.join(os.path.dirname(path), file)) if file else path
        if not os.path.exists(target):
            fail(f"{path}: no file {link}")
        elif anchor and anchor not in anchors_of(target):
            fail(f"{path}: no heading {link}")


def check_files(path):
    """What is quoted as a path below a folder of the tree exists."""
    folders = [name for name in os.listdir(ROOT) if os.path.isdir(os.path.join(ROOT, name))]
    tops = "|".join(name for name in folders if not name.startswith((".", "build")))
    for quoted in re.findall(rf"`((?:{tops})/[\w./*-]*)`", without_code(read(path))):
        if quoted not in ELSEWHERE and not glob.glob(os.path.join(ROOT, quoted)):
            fail(f"{path}: no file {quoted}")


def check_functions(path):
    """Functions and types of the public headers."""
    headers = "".join(read(name) for name in glob.glob(f"{ROOT}/include/lockstep/*.h"))
    known = set(re.findall(r"\bls_\w+", headers))
    for name in set(re.findall(r"`(ls_\w+)\b", read(path))) - known:
        if not any(word.startswith(name) for word in known):
            fail(f"{path}: no function {name}")


def check_readme(path, pages):
    text = read(path)
    n = len(text.splitlines())
    if n > LINES_MOST:
        fail(f"README.md has {n} lines, more than {LINES_MOST}")
    for page in pages:
        if f"]({os.path.relpath(page, ROOT)})" not in text:
            fail(f"README.md has no link to {page}")
    outside = re.sub(r"^## Figures\n.*?(?=^## )", "", text, flags=re.S | re.M)
    for figure in re.findall(r"[\d.]+ (?:times as|ms\b|MiB|GB/s|samples/s|%)", outside):
        fail(f"README.md: the figure {figure} is not in section Figures")
    done = subprocess.run([f"{ROOT}/bench/readme_figures", "--check"])
    if done.returncode != 0:
        fail("README.md: figures are not those of docs/figures.json")


docs = sorted(glob.glob(f"{ROOT}/docs/*.md"))
check_readme(f"{ROOT}/README.md", docs)
for name in [f"{ROOT}/README.md", f"{ROOT}/ARCHITECTURE.md", f"{ROOT}/bench/README.md"] + docs:
    check_links(name)
    check_files(name)
    check_functions(name)
sys.exit(failed)
