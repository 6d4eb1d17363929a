# SPDX-License-Identifier: Apache-2.0
"""gpu_scripts.py ROOT: bench/gpu/verify and bench/gpu/bench with programs that hang, crash and
print anything: they end in time, name the fault, and keep their results."""
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.abspath(sys.argv.pop(1))
WAITS_S = 300  # only against hanging

# Cases 0 to 9; which of them fails, and how, is in the environment.
DEVICE_OPS = """
import json, os, signal, sys, time
first = int(sys.argv[sys.argv.index("--first") + 1]) if "--first" in sys.argv else 0
n, stopped = 0, False
for case in range(first, 10):
    print(f"case {case} name of {case}", flush=True)
    n += 1
    if case == int(os.environ.get("CRASHES", -1)):
        os.kill(os.getpid(), signal.SIGSEGV)
    if case == int(os.environ.get("HANGS", -1)):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1000)
    if case == int(os.environ.get("STOPS", -1)):
        stopped = True
        break
result = {"cases": n, "failed": int(stopped), "is_stopped": stopped, "worst": 0.001}
result["worst_case"] = f"name of {case}" if n else ""
if "MISSING" in os.environ:
    sys.exit("cannot load " + os.environ["MISSING"])
print(json.dumps({"device": "a card", **result}))
"""
STEP = """
import json, os, sys, time
kind = os.environ.get("STEP", "")
if kind == "hangs":
    time.sleep(1000)
if kind == "crashes":
    print("a reason", file=sys.stderr)
    sys.exit(9)
print(json.dumps({"step_ms": 2.0, "peak_mib": 10}))
if kind == "talks":
    print("not the last line")
"""
PROGRAMS = {
    "device_ops": DEVICE_OPS,
    "convnet_step": STEP,
    "lockstep": "print('lockstep 0')",
    "kernel_bandwidth": """
import json, os, time
print(json.dumps({"kernel": "copy", "type": "f32", "bytes": 4, "us": 1, "gb_s": 1, "of_copy": 1}))
print("{no object", flush=True)
time.sleep(1000 if os.environ.get("KERNELS") == "hangs" else 0)
""",
    "nvidia-smi": "print('A card, 999.0, 1 MiB')",
    "python": """
import json, runpy, sys
if sys.argv[1] == "-c":
    print(json.dumps({"torch": "9", "finds": True}))
else:
    print("a warning")
    print(json.dumps({"step_ms": 4.0, "peak_mib": 20}))
""",
}


class Scripts(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        os.mkdir(f"{self.folder.name}/bin")
        for name, text in PROGRAMS.items():
            path = f"{self.folder.name}/bin/{name}"
            with open(path, "w", encoding="utf-8") as file:
                file.write(f"#!{sys.executable}\n{text}")
            os.chmod(path, 0o755)

    def run_script(self, name, *words, **environment):
        """Exit code, output and the kept results."""
        out = f"{self.folder.name}/out.json"
        path = f"{self.folder.name}/bin:{os.environ['PATH']}"
        done = subprocess.run(
            [sys.executable, f"{ROOT}/bench/gpu/{name}", "--build", self.folder.name]
            + ["--out", out, *words],
            env={**os.environ, "PATH": path, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=WAITS_S,
        )
        with open(out, encoding="utf-8") as file:
            return done.returncode, done.stdout, json.load(file)

    def verify(self, *words, **environment):
        return self.run_script("verify", "--device", "cpu", *words, **environment)

    def test_all_cases_pass(self):
        code, text, kept = self.verify("--only", "operators-bf16")
        self.assertEqual((code, kept["checks"][0]["state"]), (0, "ok"), text)
        self.assertIn("10 cases", kept["checks"][0]["text"])

    def test_facts_name_the_card_or_what_is_missing(self):
        code, text, kept = self.verify("--only", "facts", "--device", "cuda")
        self.assertEqual((code, kept["checks"][0]["text"]), (0, "a card"), text)
        code, text, kept = self.verify(
            "--only", "facts", "--device", "cuda", MISSING="libcudnn.so.9"
        )
        self.assertEqual(code, 1, text)
        self.assertIn("cannot load libcudnn.so.9", kept["checks"][0]["text"])

    def test_cases_after_a_crash_run(self):
        code, text, kept = self.verify("--only", "operators-bf16", CRASHES="4")
        self.assertEqual((code, kept["checks"][0]["state"]), (1, "FAILED"), text)
        self.assertIn("1 cases end the process: name of 4 (ended by signal 11", text)
        self.assertIn("case 9 name of 9", kept["checks"][0]["runs"][-1]["output"])

    def test_cases_after_the_end_of_the_device_run(self):
        code, text, kept = self.verify("--only", "operators-bf16", STOPS="2")
        self.assertEqual(code, 1, text)
        self.assertIn("1 cases end the process: name of 2", text)
        self.assertIn("case 9 name of 9", kept["checks"][0]["runs"][-1]["output"])

    def test_a_hanging_case_ends_at_the_limit(self):
        begin = time.monotonic()
        code, text, kept = self.verify(
            "--only", "operators-bf16", "--only", "facts", "--minutes", "0.05", HANGS="3"
        )
        self.assertEqual(code, 1, text)
        self.assertIn("name of 3 (did not end within", text)
        self.assertEqual(kept["checks"][1]["state"], "not run")
        self.assertLess(time.monotonic() - begin, 120)

    def test_what_was_not_run_has_not_passed(self):
        for words in (["--only", "accuracy-fp32", "--data", "/none"], ["--only", "networks"]):
            code, text, kept = self.verify(*words)
            self.assertEqual((code, kept["checks"][0]["state"]), (3, "not run"), text)

    def test_parts(self):
        code, text, kept = self.verify("--part", "3")
        self.assertEqual([c["name"] for c in kept["checks"]], ["bench"], text)

    def bench(self, *words, **environment):
        python = f"{self.folder.name}/bin/python"
        words = ["--workload", "convnet-fp32", "--python", python, "--rounds", "2", *words]
        return self.run_script("bench", *words, **environment)

    def test_a_bench_without_faults(self):
        code, text, kept = self.bench("--minutes", "9")
        self.assertEqual(code, 0, text)
        self.assertIn("ratio  2.00", text)
        self.assertEqual(kept["machine"]["card"], "A card, 999.0, 1 MiB")

    def test_a_bench_of_programs_that_fail(self):
        code, text, kept = self.bench("--minutes", "9", STEP="crashes")
        self.assertEqual(code, 1, text)
        self.assertIn("exit code 9: a reason", text)
        code, text, kept = self.bench("--minutes", "9", STEP="talks")
        self.assertEqual(code, 0, text)

    def test_a_bench_without_time_runs_nothing(self):
        code, text, kept = self.bench("--minutes", "0.1", STEP="hangs")
        self.assertIn("not run: no time left", text)
        self.assertEqual(kept["workloads"]["convnet-fp32"]["lockstep"], [])


unittest.main()
