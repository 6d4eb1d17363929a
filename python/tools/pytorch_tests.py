#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's own tests of torch.distributed, which its wheel contains, with Lockstep.

    pytorch_tests.py run RESULTS.json [--worlds 2 3] [--forms cpp python] [--only TEST...]
    pytorch_tests.py table RESULTS.json...        prints docs/pytorch-tests.md

`run` first runs distributed_test.py with gloo. Each test that passes there runs with the backend
"lockstep"; those that PyTorch skips for backends it does not know run again under the name gloo
(LOCKSTEP_TORCH_REPLACE). Ranks start by fork. The exit code is 1 if a test fails that is not in
KNOWN. The Python that runs the script has torch, expecttest and this package (PYTHONPATH).
"""
import argparse
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest

# Tests that gloo passes and Lockstep does not, and why.
NO_EVENT = "the Python form has no profiler event for coalesced operations, and the test counts it"
NO_BACKEND = "under the name gloo PyTorch looks in the group for a backend in C++"
KNOWN = {
    "test_ddp_logging_data_cpu": {
        "cpp": 'PyTorch reports the name "custom" for backends in C++ that are not its own',
    },
    "test_accumulate_gradients_no_sync": {"python": NO_BACKEND},
    "test_accumulate_gradients_no_sync_allreduce_hook": {"python": NO_BACKEND},
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook": {"python": NO_BACKEND},
    "test_accumulate_gradients_no_sync_grad_is_view": {"python": NO_BACKEND},
    "test_grads_same_across_ranks_with_no_sync": {"python": NO_BACKEND},
}
for _group in ("", "full_group_"):
    for _operation in ("max", "min", "product", "sum"):
        KNOWN[f"test_all_reduce_coalesced_{_group}{_operation}"] = {"python": NO_EVENT}
LIMIT_S = 120  # for one test


# --- one run, in a process of its own ---


class Recorder(unittest.TestResult):
    """Notes how each test ended: its last line of text, and seconds."""

    def __init__(self):
        super().__init__()
        self.ended = {}
        self.started_s = 0.0

    def startTest(self, test):
        self.started_s = time.monotonic()
        super().startTest(test)

    def note(self, test, end, text=""):
        name = test.id().split(".")[-1]
        seconds = round(time.monotonic() - self.started_s, 1)
        self.ended[name] = [end, text, seconds]
        print(f"{name}: {end} {seconds} s {text}", file=sys.__stderr__, flush=True)

    def addSuccess(self, test):
        self.note(test, "pass")

    def addSkip(self, test, reason):
        self.note(test, "skip", reason)

    def addFailure(self, test, error):
        lines = [line.strip() for line in str(error[1]).split("\n") if line.strip()]
        reported = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
        self.note(test, "fail", (reported or lines or [repr(error[1])])[-1][:300])

    addError = addFailure


def suite(names):
    """The tests of distributed_test.py in a class that starts its ranks by fork."""
    import torch.multiprocessing
    from torch.testing._internal import common_distributed
    from torch.testing._internal.distributed import distributed_test

    common_distributed.get_timeout = lambda test: LIMIT_S
    for feature in ("ddp", "subgroup"):
        common_distributed.DistTestCases.backend_feature[feature].add("lockstep")

    class Tests(
        distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase
    ):
        def setUp(self):
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    all_names = names or unittest.TestLoader().getTestCaseNames(Tests)
    return unittest.TestSuite(Tests(name) for name in all_names if hasattr(Tests, name))


def run_here(names):
    """Runs the tests of this process' environment; prints their ends as JSON."""
    if "LOCKSTEP_TORCH_FORM" in os.environ:
        import lockstep.torch  # noqa: F401
    recorder = Recorder()
    tests = suite(names)
    out, sys.stdout = sys.stdout, io.StringIO()
    tests.run(recorder)
    sys.stdout = out
    json.dump(recorder.ended, sys.stdout)


# --- all runs ---


def run_child(backend, world, form=None, replace=False, names=()):
    """The ends of the tests in a child process, by test."""
    with tempfile.TemporaryDirectory() as folder:
        variables = dict(os.environ, BACKEND=backend, WORLD_SIZE=str(world), TEMP_DIR=folder)
        for name in ("LOCKSTEP_TORCH_FORM", "LOCKSTEP_TORCH_REPLACE"):
            variables.pop(name, None)
        if form:
            variables["LOCKSTEP_TORCH_FORM"] = form
        if replace:
            variables["LOCKSTEP_TORCH_REPLACE"] = "gloo"
        print(f"== {backend} {form or ''} {world} ranks", file=sys.stderr, flush=True)
        child = subprocess.run(
            [sys.executable, os.path.abspath(__file__), "here", *names],
            env=variables,
            stdout=subprocess.PIPE,
        )
    if child.returncode != 0:
        raise SystemExit(f"pytorch_tests.py: the run ended with {child.returncode}")
    return json.loads(child.stdout)


def run_all(options):
    import torch

    results = {"torch": torch.__version__.split("+")[0], "worlds": {}}
    for world in options.worlds:
        reference = run_child("gloo", world, names=options.only)
        passing = [name for name, end in reference.items() if end[0] == "pass"]
        entry = {"gloo": reference}
        for form in options.forms:
            ends = run_child("lockstep", world, form, names=passing) if passing else {}
            skipped = [name for name in passing if ends[name][0] == "skip"]
            if skipped:
                again = run_child("gloo", world, form, True, skipped)
                ends.update({name: ["as gloo: " + end[0], *end[1:]] for name, end in again.items()})
            entry[form] = ends
        results["worlds"][str(world)] = entry
        with open(options.results, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)
    return 1 if unexpected(results) else 0


def unexpected(results):
    """Prints the failures that KNOWN does not have; whether there are any."""
    found = False
    for world, entry in results["worlds"].items():
        for form, ends in entry.items():
            for name, (end, text, _) in ends.items():
                if form != "gloo" and "pass" not in end and form not in KNOWN.get(name, {}):
                    print(f"{name}, {form}, {world} ranks: {end}: {text}")
                    found = True
    return found


# --- the page ---

HEAD = """# PyTorch's own tests

`torch/testing/_internal/distributed/distributed_test.py`, which PyTorch's wheel contains, with the
backend `lockstep`. A row for each test that passes with gloo in the same run; tests that gloo skips
(they need GPUs or more ranks) are left out. *as gloo* marks tests that PyTorch skips for backends
whose name it does not know; they ran with Lockstep under the name gloo
(`LOCKSTEP_TORCH_REPLACE=gloo`). This page is the output of

    python python/tools/pytorch_tests.py run RESULTS.json       # with each torch
    python python/tools/pytorch_tests.py table RESULTS.json...
"""


def page(files):
    columns, tests = [], {}
    print(HEAD)
    print("| torch | form | ranks | pass | of these as gloo | fail |\n|---|---|---|---|---|---|")
    for results in files:
        for world, entry in results["worlds"].items():
            for form in [form for form in entry if form != "gloo"]:
                ends = entry[form]
                columns.append(f"{results['torch']} {form} {world}")
                for name, end in ends.items():
                    tests.setdefault(name, {})[columns[-1]] = end[0]
                kinds = [end[0] for end in ends.values()]
                print(
                    f"| {results['torch']} | {form} | {world} "
                    f"| {sum('pass' in kind for kind in kinds)} "
                    f"| {kinds.count('as gloo: pass')} "
                    f"| {sum('pass' not in kind for kind in kinds)} |"
                )
    failed = sorted(
        (name, column)
        for name, ends in tests.items()
        for column, end in ends.items()
        if "pass" not in end
    )
    print("\n## Failures\n")
    for name, column in failed:
        form = column.split()[1]
        print(f"- `{name}` ({column}): {KNOWN.get(name, {}).get(form, 'not explained yet')}")
    if not failed:
        print("None.")
    print("\n## Test by test\n")
    print("| test | " + " | ".join(columns) + " |\n|---|" + "---|" * len(columns))
    for name in sorted(tests):
        print(f"| `{name}` | " + " | ".join(tests[name].get(c, "-") for c in columns) + " |")


def main():
    parser = argparse.ArgumentParser(description="PyTorch's tests with Lockstep")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run the tests")
    run.add_argument("results", metavar="RESULTS.json")
    run.add_argument("--worlds", type=int, nargs="+", default=[2, 3])
    run.add_argument("--forms", nargs="+", choices=["cpp", "python"], default=["cpp", "python"])
    run.add_argument("--only", nargs="+", default=[], metavar="TEST")
    table = commands.add_parser("table", help="print the page of results")
    table.add_argument("results", nargs="+", metavar="RESULTS.json")
    here = commands.add_parser("here", help="used by run")
    here.add_argument("names", nargs="*")
    options = parser.parse_args()
    if options.command == "run":
        return run_all(options)
    if options.command == "table":
        files = []
        for path in options.results:
            with open(path, encoding="utf-8") as file:
                files.append(json.load(file))
        page(files)
    else:
        run_here(options.names)
    return 0


if __name__ == "__main__":
    sys.exit(main())
