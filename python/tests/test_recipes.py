# SPDX-License-Identifier: Apache-2.0
"""The recipes of docs/recipes.md give what gloo gives, with the packages that are there."""
import importlib.util
import os
import re
import sys
import tempfile
import unittest

import test_launch

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGES = {"lightning": "lightning", "accelerate": "accelerate", "trainer": "transformers"}
TOOL = os.environ["LS_TEST_TOOL"]
DEADLINE_S = 300
LOCKSTEP_RUN = [TOOL, "run", "-n", "2"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


class Recipes(unittest.TestCase):
    def ends(self, name, launcher, *words, **variables):
        """What two ranks print at their end, and whether their group was Lockstep's."""
        if importlib.util.find_spec(PACKAGES[name]) is None:
            self.skipTest(f"{sys.executable} lacks {PACKAGES[name]}")
        script = os.path.join(HERE, "recipes", f"with_{name}.py")
        with tempfile.TemporaryDirectory(prefix="lockstep-recipes-") as folder:
            command = launcher + [script] + ([folder] if name == "trainer" else []) + list(words)
            variables.update(PYTHON_EXEC=sys.executable, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
            output = test_launch.launch(command, DEADLINE_S, **variables)
        found = re.findall(r"end (\d+) ([\d.]+) (\w+)", output)
        self.assertEqual([n for n, _, _ in found], ["2", "2"], output)
        return [(value, kind != "ProcessGroupGloo") for _, value, kind in found]

    def check(self, name, *found):
        """With Lockstep's group a recipe gives what it gives with gloo."""
        expected = self.ends(name, TORCHRUN, "gloo")
        self.assertEqual([is_lockstep for _, is_lockstep in expected], [False] * 2)
        for ends in found:
            self.assertEqual(ends, [(value, True) for value, _ in expected])

    def test_lightning(self):
        own_processes = self.ends("lightning", [sys.executable])
        self.check("lightning", own_processes, self.ends("lightning", LOCKSTEP_RUN))

    def check_changed_and_not(self, name):
        unchanged = self.ends(name, LOCKSTEP_RUN, "gloo", LOCKSTEP_TORCH_REPLACE="gloo")
        self.check(name, unchanged, self.ends(name, LOCKSTEP_RUN))

    def test_accelerate(self):
        self.check_changed_and_not("accelerate")

    def test_trainer(self):
        self.check_changed_and_not("trainer")


if __name__ == "__main__":
    if not any(map(importlib.util.find_spec, PACKAGES.values())):
        print(f"{sys.executable} has none of {', '.join(PACKAGES.values())}")
        sys.exit(77)
    unittest.main(verbosity=2)
