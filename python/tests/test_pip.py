# SPDX-License-Identifier: Apache-2.0
"""pip install of a source tree builds the package, also in the isolation that hides torch."""
import os
import subprocess
import sys
import tempfile
import unittest

from test_wheel import BUILD_DEADLINE_S, Environment, call, has_cpp

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
SCRIPT = """\
import torch
import torch.distributed as dist
import lockstep.torch

dist.init_process_group("lockstep")
total = torch.ones(1)
dist.all_reduce(total)
print("sum", total.item(), *lockstep.torch.form())
"""


class Source(Environment):
    def setUp(self):
        super().setUp()
        self.environment["XDG_CACHE_HOME"] = self.folder  # no C++ form of an earlier build

    def install(self, *words, expected=(0,)):
        command = [self.python, "-m", "pip", "install", "-v", *words]
        return call(command, self.environment, expected, BUILD_DEADLINE_S)

    def test_installed_package_runs_ranks_and_removal_leaves_nothing(self):
        self.add_torch()
        before = self.files()
        output = self.install(os.path.join(ROOT, "python"))
        self.assertRegex(output, r"\[\d+/\d+\] Linking C executable bin/lockstep")
        script = os.path.join(self.folder, "script.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(SCRIPT)
        form = "cpp" if has_cpp() else "python"
        output = self.call(self.tool, "run", "-n", "2", script)
        self.assertEqual(output.count(f"sum 2.0 {form}"), 2, output)
        self.call(self.python, "-m", "pip", "uninstall", "-q", "-y", "lockstep")
        self.assertEqual(self.files() - before, set())

    def test_editable_installation_without_torch(self):
        output = self.install("-e", ROOT)
        self.assertIn("C++ form of the backend is not compiled", output)
        self.assertRegex(self.call(self.tool, "--version"), r"^lockstep \d")
        self.add_torch()
        self.assertIn("all is well", self.call(self.python, "-m", "lockstep.torch.selftest"))

    def test_missing_packages_are_named(self):
        self.environment["PKG_CONFIG_LIBDIR"] = self.folder
        output = self.install(ROOT, expected=(1,))
        self.assertRegex(output, "sudo apt-get install .*libsodium-dev")


def main():
    """The code for run.sh: 77, skipped."""
    words = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "scikit-build-core"]
    with tempfile.TemporaryDirectory() as folder:
        if subprocess.run(words + ["-d", folder]).returncode != 0:
            print("scikit-build-core cannot be downloaded")
            return 77
    tests = unittest.main(verbosity=2, exit=False)
    return 0 if tests.result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
