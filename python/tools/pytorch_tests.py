#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's own tests of torch.distributed, which its wheel contains, with Lockstep.

    pytorch_tests.py run RESULTS.json [--worlds 2 3] [--forms cpp python] [--only TEST...]
    pytorch_tests.py page PYTHON=FORM[,FORM]... [--worlds 2 3 4]

`run` first runs distributed_test.py with gloo. Each test that passes there runs with the backend
"lockstep"; those that PyTorch skips for backends it does not know run again under the name gloo
(LOCKSTEP_TORCH_REPLACE). Ranks start by fork. The exit code is 1 if a test fails that is not in
KNOWN. The Python that runs the script has torch, expecttest and this package (PYTHONPATH).

`page` does this with each PYTHON in turn, and writes docs/pytorch-tests.md.
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
KNOWN = {
    "test_ddp_logging_data_cpu": {
        "cpp": 'PyTorch reports the name "custom" for backends in C++ that are not its own',
    },
}
LIMIT_S = 600  # for one test


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


def run_here(path, names):
    """Runs the tests of this process' environment; writes their ends as JSON."""
    if "LOCKSTEP_TORCH_FORM" in os.environ:
        import lockstep.torch  # noqa: F401
    recorder = Recorder()
    tests = suite(names)
    out, sys.stdout = sys.stdout, io.StringIO()
    tests.run(recorder)
    sys.stdout = out
    with open(path, "w", encoding="utf-8") as file:
        json.dump(recorder.ended, file)


# --- all runs ---


def run_child(backend, world, form=None, replace=False, names=()):
    """The ends of the tests in a child process, by test."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "ends.json")
        variables = dict(os.environ, BACKEND=backend, WORLD_SIZE=str(world), TEMP_DIR=folder)
        for name in ("LOCKSTEP_TORCH_FORM", "LOCKSTEP_TORCH_REPLACE"):
            variables.pop(name, None)
        if form:
            variables["LOCKSTEP_TORCH_FORM"] = form
        if replace:
            variables["LOCKSTEP_TORCH_REPLACE"] = "gloo"
        print(f"== {backend} {form or ''} {world} ranks", file=sys.stderr, flush=True)
        child = subprocess.run(
            [sys.executable, os.path.abspath(__file__), "here", path, *names],
            env=variables,
            stdout=subprocess.DEVNULL,  # some tests print
        )
        if child.returncode != 0:
            raise SystemExit(f"pytorch_tests.py: the run ended with {child.returncode}")
        with open(path, encoding="utf-8") as file:
            return json.load(file)


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

HERE = os.path.dirname(os.path.abspath(__file__))
PAGE = os.path.join(HERE, "..", "..", "docs", "pytorch-tests.md")
HEAD = """# PyTorch's own tests

`torch/testing/_internal/distributed/distributed_test.py`, which PyTorch's wheel contains, with the
backend `lockstep`. A row for each test that passes with gloo in the same run; tests that gloo skips
(they need GPUs or more ranks) are left out. *as gloo* marks tests that PyTorch skips for backends
whose name it does not know; they ran with Lockstep under the name gloo
(`LOCKSTEP_TORCH_REPLACE=gloo`). This page is written by one command, where each PYTHON has one
version of torch:

    python/tools/pytorch_tests.py page PYTHON=cpp,python PYTHON=cpp PYTHON=python"""


def columns_of(files):
    """Title and ends of each run with Lockstep, with the ends of gloo beside it."""
    for results in files:
        for world, entry in results["worlds"].items():
            for form in [form for form in entry if form != "gloo"]:
                yield (results["torch"], form, world), entry[form], entry["gloo"]


def page(files):
    """The text of the page."""
    columns = list(columns_of(files))
    lines = [HEAD, "", "| torch | form | ranks | gloo passes | Lockstep passes | as gloo |"]
    lines += ["|---|---|---|---|---|---|"]
    failed, tests = [], {}
    for title, ends, gloo in columns:
        kinds = [end[0] for end in ends.values()]
        counts = [sum(end[0] == "pass" for end in gloo.values())]
        counts += [sum("pass" in kind for kind in kinds), kinds.count("as gloo: pass")]
        lines.append("| " + " | ".join([*title, *map(str, counts)]) + " |")
        for name, end in ends.items():
            tests.setdefault(name, {})[title] = end[0]
            if "pass" not in end[0]:
                reason = KNOWN.get(name, {}).get(title[1], f"not explained: {end[1]}")
                failed.append(f"- `{name}` ({' '.join(title)}): {reason}")
    lines += ["", "## Failures", "", *(sorted(failed) or ["None."]), "", "## Test by test", ""]
    lines.append("| test | " + " | ".join(" ".join(title) for title, _, _ in columns) + " |")
    lines.append("|---|" + "---|" * len(columns))
    for name in sorted(tests):
        cells = [tests[name].get(title, "-") for title, _, _ in columns]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def write_page(options):
    files = []
    with tempfile.TemporaryDirectory() as folder:
        for world in options.worlds:
            for number, choice in enumerate(options.pythons):
                python, _, forms = choice.rpartition("=")
                path = os.path.join(folder, f"{number}_{world}.json")
                words = [python, os.path.abspath(__file__), "run", path, "--worlds", str(world)]
                words += ["--forms", *forms.split(",")]
                words += ["--only", *options.only] if options.only else []
                if subprocess.run(words).returncode not in (0, 1) or not os.path.exists(path):
                    raise SystemExit(f"pytorch_tests.py: no results of {choice}")
                with open(path, encoding="utf-8") as file:
                    files.append(json.load(file))
                with open(options.output, "w", encoding="utf-8") as file:
                    file.write(page(files))
    return 0


def main():
    parser = argparse.ArgumentParser(description="PyTorch's tests with Lockstep")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run the tests")
    run.add_argument("results", metavar="RESULTS.json")
    run.add_argument("--worlds", type=int, nargs="+", default=[2, 3])
    run.add_argument("--forms", nargs="+", choices=["cpp", "python"], default=["cpp", "python"])
    run.add_argument("--only", nargs="+", default=[], metavar="TEST")
    whole = commands.add_parser("page", help="run the tests and write the page of results")
    whole.add_argument("pythons", nargs="+", metavar="PYTHON=FORM[,FORM]")
    whole.add_argument("--worlds", type=int, nargs="+", default=[2, 3, 4])
    whole.add_argument("--only", nargs="+", default=[], metavar="TEST")
    whole.add_argument("--output", metavar="FILE", default=PAGE)
    here = commands.add_parser("here", help="used by run")
    here.add_argument("path")
    here.add_argument("names", nargs="*")
    options = parser.parse_args()
    if options.command == "run":
        return run_all(options)
    if options.command == "page":
        return write_page(options)
    run_here(options.path, options.names)
    return 0


if __name__ == "__main__":
    sys.exit(main())
