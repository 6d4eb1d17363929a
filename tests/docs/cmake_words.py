# SPDX-License-Identifier: Apache-2.0
"""cmake_words.py ROOT ARGUMENT...: stands in for cmake: checks that presets, components and
variables of the command line exist in the tree ROOT, and builds nothing."""
import glob
import json
import os
import re
import sys

root, *words = sys.argv[1:]
with open(os.path.join(root, "CMakePresets.json"), encoding="utf-8") as f:
    presets = json.load(f)
lists = glob.glob(os.path.join(root, "**", "CMakeLists.txt"), recursive=True)
lists += glob.glob(os.path.join(root, "cmake", "*.cmake"))
text = ""
for path in lists:
    with open(path, encoding="utf-8") as f:
        text += f.read()


def known(word, value):
    """Whether the flag is right, with the word behind it."""
    if word == "--preset":
        kind = "buildPresets" if "--build" in words else "configurePresets"
        return value in [preset["name"] for preset in presets[kind]]
    if word == "--component":
        return value == "NAME" or f"COMPONENT {value}" in text
    if word.startswith("-D"):
        return re.search(rf"\b{word[2:].split('=')[0]}\b", text) is not None
    return word in ("--build", "--install", "--prefix", "--fresh") or word.startswith("-j")


for word, value in zip(words, words[1:] + [""]):
    if word.startswith("-") and not known(word, value):
        sys.exit(f"cmake: {word} {value}: not in the tree")
