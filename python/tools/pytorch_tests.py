#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's own tests of torch.distributed, which its wheel contains, with Lockstep.

    pytorch_tests.py run RESULTS [--worlds 2 3] [--forms cpp python] [--only TEST...]
    pytorch_tests.py run RESULTS --sources FOLDER [--files FILE...]
    pytorch_tests.py page RESULTS... [--tests]

`run` first runs distributed_test.py with gloo. Each test that passes there runs with the backend
"lockstep"; those that PyTorch skips for backends it does not know run again under the name gloo
(LOCKSTEP_TORCH_REPLACE). Ranks start by fork. The Python that runs the script has torch, expecttest
and this package (PYTHONPATH). RESULTS gets a line of JSON for each test that has ended; tests that
it has already do not run again, so that a run may be cut off, and continued. The exit code is 1 if
a test has failed that is not in KNOWN, 75 if --seconds are over and tests are left.

With --sources the tests are those of FILES instead, in PyTorch's folder test/distributed. That of
an older version serves: what newer torch does not have fails with gloo, too, and does not count.
All of Lockstep's runs there are under the name gloo.

`page` writes docs/pytorch-tests.md from the results of one or more versions of torch; with --tests
it has a row for each test.
"""
import argparse
import datetime
import gc
import glob
import importlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest

FORMS = ("cpp", "python")
# Tests that gloo passes and Lockstep does not, and why.
KNOWN = {
    "test_ddp_logging_data_cpu": {
        "cpp": 'PyTorch reports the name "custom" for backends in C++ that are not its own',
    },
}
# Of test/distributed: what runs on CPU.
FILES = """
    test_c10d_common.py test_c10d_gloo.py test_c10d_object_collectives.py test_c10d_spawn_gloo.py
    test_device_mesh.py test_functional_api.py
    fsdp/*.py _composable/fsdp/*.py _composable/*.py checkpoint/*.py checkpoint/*/*.py
    pipelining/*.py _tensor/*.py _tensor/debug/*.py _tensor/experimental/*.py tensor/*.py
    tensor/debug/*.py tensor/experimental/*.py tensor/parallel/*.py
""".split()
GLOO = "ProcessGroupGlooTest."
COMMON = "GlooProcessGroupWithDispatchedCollectivesTests."
for own_text in (
    "allgather_checks allreduce_checks broadcast_checks gather_checks reduce_checks "
    "scatter_checks sparse_allreduce_checks"
).split():
    KNOWN[f"{GLOO}test_{own_text}"] = dict.fromkeys(FORMS, "another text of an error than gloo's")
for accepted in ("allgather", "allreduce"):
    KNOWN[f"{GLOO}test_{accepted}_coalesced_checks"] = dict.fromkeys(
        FORMS, "expects that tensors of different sizes or types in one call are refused"
    )
for gloo_only in (
    "DistributedDataParallelTest.test_gloo_backend_cpu_module",
    "DistributedDataParallelTest.test_gloo_backend_cpu_module_grad_is_view",
    "CommTest.test_broadcast_coalesced_gloo_cpu",
):
    KNOWN[gloo_only] = dict.fromkeys(FORMS, "calls create_device() of gloo's class")
KNOWN[f"{COMMON}test_all_to_all_single"] = dict.fromkeys(
    FORMS, "expects that a tensor that is not contiguous is refused"
)
for of_class in (COMMON, COMMON[len("Gloo") :]):
    KNOWN[f"{of_class}test_init_process_group_for_all_backends"] = {
        "python": 'expects the name "custom" of backends that are not PyTorch\'s own',
    }
LIMIT_S = 600  # for one test
LEFT = 75  # exit code
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PAGE = os.path.join(ROOT, "docs", "pytorch-tests.md")


# --- one run, in a process of its own ---


class Recorder(unittest.TestResult):
    """Appends a line to the results for each test: how it ended, its last line of text, seconds."""

    def __init__(self, path, column, end_s):
        super().__init__()
        self.path = path
        self.column = column
        self.end_s = end_s
        self.started_s = 0.0

    def startTest(self, test):
        self.started_s = time.monotonic()
        super().startTest(test)

    def note(self, test, end, text=""):
        name = name_of(test)
        seconds = round(time.monotonic() - self.started_s, 1)
        print(f"{name}: {end} {seconds} s {text}", file=sys.__stderr__, flush=True)
        line = dict(self.column, test=name, end=end, text=text, seconds=seconds)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        if time.monotonic() > self.end_s:
            self.stop()

    def addSuccess(self, test):
        if getattr(test, "world_size", 1) < 1:
            self.note(test, "skip", "a rank for each GPU, of which there is none")
        else:
            self.note(test, "pass")

    def addSkip(self, test, reason):
        self.note(test, "skip", reason)

    def addFailure(self, test, error):
        lines = [line.strip() for line in str(error[1]).split("\n") if line.strip()]
        reported = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
        self.note(test, "fail", (reported or lines or [repr(error[1])])[-1][:300])

    addError = addFailure


def name_of(test):
    """The method's; of a file, which may have several classes, with the class's."""
    return ".".join(test.id().split(".")[-2 if test.id().startswith("test_") else -1 :])


def start_by_fork(test):
    import torch.multiprocessing

    gc.collect()  # a child cannot free the TCPStore of an earlier test
    test._start_processes(torch.multiprocessing.get_context("fork").Process)


def replace_class_of_gloo():
    """Groups that a test makes of the class ProcessGroupGloo are Lockstep's."""
    import torch.distributed

    import lockstep.torch

    class InPlaceOfGloo:
        class _Options:
            _timeout = 50.0

        @staticmethod
        def create_device(**_named):
            return None

        def __new__(cls, store, rank, size, options=None):
            limit = datetime.timedelta(seconds=(options or cls._Options)._timeout)
            return lockstep.torch._InPlaceOfGloo(store, rank, size, limit)

    torch.distributed.ProcessGroupGloo = InPlaceOfGloo


def file_suite(path, names):
    """The tests of a file, whose ranks start by fork; without those whose ranks are threads."""
    from torch.testing._internal import common_distributed, common_fsdp

    common_fsdp.DEVICE_COUNT = max(common_fsdp.DEVICE_COUNT, 2)  # which it has as ranks
    common_distributed.MultiProcessTestCase._spawn_processes = start_by_fork
    common_distributed.get_timeout = lambda test: LIMIT_S
    if "LOCKSTEP_TORCH_REPLACE" in os.environ:
        replace_class_of_gloo()
    sys.path.insert(0, os.path.dirname(path))
    module = importlib.import_module(os.path.basename(path)[: -len(".py")])
    loaded = unittest.TestSuite()
    for value in vars(module).values():
        is_case = isinstance(value, type) and issubclass(value, unittest.TestCase)
        if is_case and not issubclass(value, common_distributed.MultiThreadedTestCase):
            loaded.addTests(unittest.TestLoader().loadTestsFromTestCase(value))
    return unittest.TestSuite(t for t in loaded if not names or name_of(t) in names)


def suite(names):
    """The tests of distributed_test.py in a class that starts its ranks by fork."""
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
            start_by_fork(self)

    all_names = names or unittest.TestLoader().getTestCaseNames(Tests)
    return unittest.TestSuite(Tests(name) for name in all_names if hasattr(Tests, name))


def tests_of(part, sources, names=()):
    """The tests of distributed_test.py, or, where `part` is no number of ranks, of a file."""
    return suite(names) if isinstance(part, int) else file_suite(f"{sources}/{part}", names)


def print_names(options):
    for test in file_suite(options.file, ()):
        print(name_of(test))
    return 0


def test_names():
    for name, value in (("BACKEND", "gloo"), ("WORLD_SIZE", "2"), ("TEMP_DIR", "/")):
        os.environ.setdefault(name, value)  # distributed_test.py reads them
    return [test.id().split(".")[-1] for test in suite(())]


def run_here(options):
    """Runs the tests with the variables of this process."""
    import torch

    if "LOCKSTEP_TORCH_FORM" in os.environ:
        import lockstep.torch  # noqa: F401
    version = torch.__version__.split("+")[0]
    column = dict(torch=version, commit=commit(), **json.loads(options.column))
    tests = tests_of(column["world"], options.sources, options.names)
    sys.stdout = io.StringIO()  # some tests print
    tests.run(Recorder(options.results, column, time.monotonic() + options.seconds))
    return 0


def commit():
    """The last commit that changed the library or the package."""
    words = ["git", "-C", ROOT, "log", "-1", "--format=%h", "--", "python/lockstep", "src"]
    got = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return got.stdout.strip() or "unknown"


# --- all runs ---


def read(paths):
    """The last end of each test, by (torch, form, world) and then by test."""
    columns = {}
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for line in file:
                end = json.loads(line)
                column = columns.setdefault((end["torch"], end["form"], end["world"]), {})
                column[end["test"]] = end
    return columns


def title_of(world):
    return f"{world} ranks" if isinstance(world, int) else world


def passing(ends):
    return [name for name, end in ends.items() if end["end"] == "pass"]


class Runs:
    """The runs with this torch, for a limited time."""

    def __init__(self, options):
        import torch

        self.version = torch.__version__.split("+")[0]
        self.options = options
        self.end_s = time.monotonic() + options.seconds

    def ends(self, form, world):
        path = self.options.results
        columns = read([path] if os.path.exists(path) else [])
        return columns.get((self.version, form, world), {})

    def child(self, form, world, names, replace=False):
        """Runs tests in a child process."""
        column = {"form": form, "world": world, "as_gloo": replace}
        words = ["here", self.options.results, json.dumps(column), *names]
        with tempfile.TemporaryDirectory() as folder:
            backend = "gloo" if form == "gloo" or replace else "lockstep"
            variables = dict(os.environ, BACKEND=backend, WORLD_SIZE=str(world), TEMP_DIR=folder)
            for name in ("LOCKSTEP_TORCH_FORM", "LOCKSTEP_TORCH_REPLACE"):
                variables.pop(name, None)
            if form != "gloo":
                variables["LOCKSTEP_TORCH_FORM"] = form
            if replace:
                variables["LOCKSTEP_TORCH_REPLACE"] = "gloo"
            print(f"== {self.version} {form} {title_of(world)}", file=sys.stderr, flush=True)
            seconds = max(0, self.end_s - time.monotonic())
            command = [sys.executable, os.path.abspath(__file__), *words]
            command += ["--seconds", str(seconds), "--sources", self.options.sources]
            code = subprocess.run(command, env=variables).returncode
        if code != 0:
            raise SystemExit(f"pytorch_tests.py: the run ended with {code}")

    def complete(self, form, world, names):
        """Runs those of the tests that have not ended yet; whether all have."""
        ends = self.ends(form, world)
        again = self.options.again and form != "gloo"
        left = [n for n in names if n not in ends or (again and "fail" == ends[n]["end"])]
        is_file = not isinstance(world, int)
        if left and time.monotonic() < self.end_s:
            self.child(form, world, left, is_file and form != "gloo")
            ends = self.ends(form, world)
        if is_file:
            return all(name in ends for name in names)
        skipped = [name for name in names if name in ends and ends[name]["end"] == "skip"]
        if skipped and form != "gloo" and time.monotonic() < self.end_s:
            self.child(form, world, skipped, True)
            ends = self.ends(form, world)
        is_open = form != "gloo" and any(ends[n]["end"] == "skip" for n in names if n in ends)
        return not is_open and all(name in ends for name in names)


def files_of(sources, patterns):
    found = [path for p in patterns for path in sorted(glob.glob(os.path.join(sources, p)))]
    return [os.path.relpath(path, sources) for path in found]


def names_of(world, sources):
    if isinstance(world, int):
        return test_names()
    words = [sys.executable, os.path.abspath(__file__), "names", os.path.join(sources, world)]
    return subprocess.run(words, stdout=subprocess.PIPE, text=True).stdout.split()


def run_all(options):
    runs = Runs(options)
    for world in files_of(options.sources, options.files) if options.sources else options.worlds:
        names = options.only or names_of(world, options.sources)
        if not runs.complete("gloo", world, names):
            return LEFT
        chosen = [name for name in passing(runs.ends("gloo", world)) if name in names]
        for form in options.forms:
            if not runs.complete(form, world, chosen):
                return LEFT
    return 1 if unexpected(read([options.results])) else 0


def unexpected(columns):
    """Prints the failures that KNOWN does not have; whether there are any."""
    found = False
    for (version, form, world), ends in columns.items():
        for name, end in ends.items():
            if form != "gloo" and end["end"] != "pass" and form not in KNOWN.get(name, {}):
                where = f"{version} {form}, {title_of(world)}"
                print(f"{name}, {where}: {end['end']}: {end['text']}")
                found = True
    return found


# --- the page ---

HEAD = """# PyTorch's own tests

`torch/testing/_internal/distributed/distributed_test.py`, which PyTorch's wheel contains, with the
backend `lockstep`. Counted are the tests that pass with gloo in the same run; tests that gloo skips
(they need GPUs or more ranks) are left out. *as gloo*: tests that PyTorch skips for backends whose
name it does not know; they ran with Lockstep under the name gloo (`LOCKSTEP_TORCH_REPLACE=gloo`).
*commit*: the last change of the library or the package in the source tree of the run. The page is
written from the results of one run for each version of torch, where PYTHON has that version; with
`--tests` the page has a row for each test:

    PYTHON python/tools/pytorch_tests.py run RESULTS --worlds 2 3 4 --forms cpp python
    PYTHON python/tools/pytorch_tests.py run RESULTS --sources PYTORCH/test/distributed
    python/tools/pytorch_tests.py page RESULTS..."""


FILES_HEAD = """## Files of test/distributed

As gloo; ranks are started by fork. Files without a test that passes with gloo on CPU
are left out, and tests whose ranks are threads.
"""


def file_rows(columns, files):
    """A row for each file and version of torch."""
    heads = ["file", "torch", "commit", "gloo passes", "C++ form", "Python form"]
    lines = ["", FILES_HEAD, "| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    rows = []
    for version, file in sorted({(version, file) for version, _, file in files}):
        forms = [columns.get((version, f, file), {}) for f in ("gloo", "cpp", "python")]
        commits = " ".join(sorted({end["commit"] for ends in forms for end in ends.values()}))
        counts = [len(passing(ends)) for ends in forms]
        if counts[0] > 0:
            rows.append([file, version, commits, *counts])
    rows.append(["all", "", "", *(sum(row[i] for row in rows) for i in (3, 4, 5))])
    return lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]


def page(columns, with_tests):
    """The text of the page."""
    files = sorted(title for title in columns if isinstance(title[2], str))
    titles = sorted(t for t in columns if t[1] != "gloo" and isinstance(t[2], int))
    heads = ["torch", "form", "ranks", "commit", "gloo passes", "Lockstep passes", "as gloo"]
    lines = [HEAD, "", "| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    failed, cells = {}, {}
    for title in titles:
        version, form, world = title
        ends = columns[title]
        commits = " ".join(sorted({end["commit"] for end in ends.values()}))
        counts = [len(passing(columns[version, "gloo", world])), len(passing(ends))]
        counts.append(sum(ends[name]["as_gloo"] for name in passing(ends)))
        lines.append("| " + " | ".join(map(str, (*title, commits, *counts))) + " |")
        for name, end in ends.items():
            as_gloo = "as gloo: " if end["as_gloo"] else ""
            cells.setdefault(name, {})[title] = as_gloo + end["end"]
            if end["end"] != "pass":
                reason = KNOWN.get(name, {}).get(form, f"not explained: {end['text']}")
                failed.setdefault((name, reason), []).append(f"{version} {form} {world}")
    lines += file_rows(columns, files)
    for version, form, file in files:
        for name, end in columns[version, form, file].items():
            if form != "gloo" and end["end"] != "pass":
                reason = KNOWN.get(name, {}).get(form, f"not explained: {end['text']}")
                failed.setdefault((name, reason), []).append(f"{version} {form} {file}")
    lines += ["", "## Failures", "", *([] if failed else ["None."])]
    for (name, reason), where in sorted(failed.items()):
        lines.append(f"- `{name}` ({', '.join(where)}): {reason}")
    if not with_tests:
        return "\n".join(lines) + "\n"
    lines += ["", "## Test by test", ""]
    lines.append("| test | " + " | ".join(f"{v} {f} {w}" for v, f, w in titles) + " |")
    lines.append("|---|" + "---|" * len(titles))
    for name in sorted(cells):
        row = [cells[name].get(title, "-") for title in titles]
        lines.append(f"| `{name}` | " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"


def write_page(options):
    with open(options.output, "w", encoding="utf-8") as file:
        file.write(page(read(options.results), options.tests))
    return 0


def main():
    parser = argparse.ArgumentParser(description="PyTorch's tests with Lockstep")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run the tests, or continue")
    run.add_argument("results", metavar="RESULTS")
    run.add_argument("--worlds", type=int, nargs="+", default=[2, 3])
    run.add_argument("--forms", nargs="+", choices=["cpp", "python"], default=["cpp", "python"])
    run.add_argument("--only", nargs="+", default=[], metavar="TEST")
    run.add_argument("--files", nargs="+", default=FILES, metavar="FILE")
    run.add_argument("--again", action="store_true", help="tests that have failed run again")
    whole = commands.add_parser("page", help="write the page of results")
    whole.add_argument("results", nargs="+", metavar="RESULTS")
    whole.add_argument("--output", metavar="FILE", default=PAGE)
    whole.add_argument("--tests", action="store_true", help="with a row for each test")
    names = commands.add_parser("names", help="used by run")
    names.add_argument("file")
    here = commands.add_parser("here", help="used by run")
    here.add_argument("results")
    here.add_argument("column")
    here.add_argument("names", nargs="*")
    for command in (run, here):
        command.add_argument(
            "--seconds", type=float, default=1e9, help="start no test after this time"
        )
        command.add_argument("--sources", default="", metavar="FOLDER")
    options = parser.parse_args()
    if options.command == "names":
        return print_names(options)
    if options.command == "here":
        return run_here(options)
    return run_all(options) if options.command == "run" else write_page(options)


if __name__ == "__main__":
    sys.exit(main())
