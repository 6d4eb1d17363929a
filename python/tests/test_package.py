# SPDX-License-Identifier: Apache-2.0
"""What pip would install, from the build in LS_TEST_BUILD: all files, which find each other."""
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import unittest
from importlib import metadata

HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON = os.path.join(HERE, "..")
BUILD = os.environ["LS_TEST_BUILD"]


def read(*path):
    with open(os.path.join(PYTHON, *path), "rb") as file:
        return tomllib.load(file)


class Package(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-package-")
        self.addCleanup(folder.cleanup)
        self.top = folder.name
        words = ["cmake", "--install", BUILD, "--component", "python", "--prefix", self.top]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)

    def call(self, *words):
        kept = {k: v for k, v in os.environ.items() if not k.startswith("LOCKSTEP_")}
        environment = dict(kept, PYTHONPATH=self.top)
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    def test_files_find_each_other(self):
        made = {
            os.path.relpath(os.path.join(folder, name), self.top)
            for folder, _, names in os.walk(self.top)
            for name in names
        }
        headers = {f"lockstep/include/lockstep/{name}.h" for name in ("base", "comm", "store")}
        expected = headers | {"lockstep/lib/liblockstep.so.0.1", "lockstep/bin/lockstep"}
        if os.path.exists(os.path.join(BUILD, "lib", "liblockstep_cuda.so")):
            expected |= {f"lockstep/lib/liblockstep_{name}.so" for name in ("cuda", "nccl")}
            programs = ("mnist", "resnet", "imagenet", "gpt")
            expected |= {f"lockstep/libexec/lockstep/{name}" for name in programs}
        self.assertEqual(made - {"lockstep/libexec/lockstep/lockstep-agent"}, expected)

        source = os.path.join(PYTHON, "lockstep")
        shutil.copytree(source, os.path.join(self.top, "lockstep"), dirs_exist_ok=True)
        project = read("..", "pyproject.toml")["project"]
        words = "import sys, lockstep._tool; sys.argv[1:] = ['--version']; lockstep._tool.main()"
        version = self.call(sys.executable, "-c", words).strip()
        self.assertEqual(version, f"lockstep {project['version']}")
        words = "from lockstep.torch import _lib as l, build; "
        words += "print(l.lib._name, build.headers_folder())"
        places = self.call(sys.executable, "-c", words).split()
        self.assertEqual([place.startswith(self.top) for place in places], [True, True], places)

    def test_description(self):
        whole, pointer = read("..", "pyproject.toml"), read("pyproject.toml")
        self.assertEqual(whole["build-system"]["requires"], pointer["build-system"]["requires"])
        groups = whole["project"]["entry-points"]
        for group, names in dict(groups, scripts=whole["project"]["scripts"]).items():
            for name, value in names.items():
                entry = metadata.EntryPoint(name, value, group).load()
                self.assertTrue(callable(entry), value)


if __name__ == "__main__":
    unittest.main(verbosity=2)
