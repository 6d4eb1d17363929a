# SPDX-License-Identifier: Apache-2.0
"""gpu_bundle.py ROOT: bench/gpu/bundle over a small build tree, and with input from which no bundle
can be made."""
import contextlib
import errno
import gzip
import importlib.machinery
import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
from unittest import mock

ROOT = os.path.abspath(sys.argv.pop(1))
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("bundle", f"{ROOT}/bench/gpu/bundle")
bundle = importlib.util.module_from_spec(importlib.util.spec_from_loader("bundle", loader))
loader.exec_module(bundle)

# In the place of patchelf, which the machine may lack: keeps what it is called with.
PATCHELF = '#!/bin/sh\necho "$@" >>"$(dirname "$0")/patched"\n'
LIBRARY = 'const char *{name}(void); const char *{name}(void) {{ return "{loads}"; }}'
PROGRAM = "const char *lockstep(void); int main(void) { return lockstep() == 0; }"


def images(count):
    header = bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in (count, 1, 2))
    return header + b"".join(bytes([i % 251, i % 7]) for i in range(count))


class Bundle(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.top = folder.name
        for name in ("bin", "lib", "tools", "data"):
            os.mkdir(f"{self.top}/{name}")
        with open(f"{self.top}/tools/patchelf", "w", encoding="ascii") as file:
            file.write(PATCHELF)
        os.chmod(f"{self.top}/tools/patchelf", 0o755)
        path = {"PATH": f"{self.top}/tools:/usr/bin:/bin"}
        self.enterContext(mock.patch.dict(os.environ, path))
        for name in bundle.DATA:
            with gzip.open(f"{self.top}/data/{name}-ubyte.gz", "wb") as file:
                file.write(images(40))

    def compile(self, text, target, *words):
        command = ["cc", "-x", "c", "-", "-o", f"{self.top}/{target}", f"-L{self.top}/lib"]
        command += [f"-Wl,-rpath,{self.top}/lib", "-Wl,--no-as-needed", "-fPIC", *words]
        subprocess.run(command, input=text, text=True, check=True)

    def make_library(self, name, soname, *words, loads=""):
        text = LIBRARY.format(name=name, loads=loads)
        self.compile(text, f"lib/{soname}", "-shared", f"-Wl,-soname,{soname}", *words)
        if not os.path.exists(f"{self.top}/lib/lib{name}.so"):
            os.symlink(soname, f"{self.top}/lib/lib{name}.so")

    def make_build(self):
        self.make_library("extra", "libextra.so.3")
        self.make_library("cudnn", "libcudnn.so.99")
        self.make_library("lockstep", "liblockstep.so.0.1", "-lextra", loads="libz.so.1")
        for name in ("cuda", "nccl", "onednn"):
            words = ["-lcudnn"] if name == "cuda" else []
            self.make_library(f"lockstep_{name}", f"liblockstep_{name}.so", *words)
        os.remove(f"{self.top}/lib/libcudnn.so.99")  # the machine with the card has it
        self.compile(PROGRAM, "bin/lockstep", "-llockstep")
        for name in bundle.PROGRAMS[1:]:
            shutil.copy(f"{self.top}/bin/lockstep", f"{self.top}/bin/{name}")

    def run_bundle(self, output="out"):
        """What it prints, or the text of its failure."""
        words = ["bundle", "--build", self.top, "--data", f"{self.top}/data"]
        words += [f"{self.top}/{output}"]
        printed = io.StringIO()
        try:
            with mock.patch.object(sys, "argv", words), contextlib.redirect_stdout(printed):
                bundle.main()
        except SystemExit as failure:
            return str(failure)
        return printed.getvalue()

    def read(self, path):
        with open(f"{self.top}/{path}", "rb") as file:
            return file.read()

    def test_archives_have_what_the_machine_lacks(self):
        self.make_build()
        output = self.run_bundle()
        self.assertIn("lockstep-gpu.tar.gz: 0.", output)
        self.assertRegex(output, r"needs GLIBC_2\.\d+.* or later")
        with tarfile.open(f"{self.top}/out/lockstep-gpu.tar.gz") as tar:
            names = {name.removeprefix("lockstep-gpu/") for name in tar.getnames()}
        expected = {f"build/bin/{name}" for name in bundle.PROGRAMS} | set(bundle.SCRIPTS)
        expected |= {f"build/lib/{name}" for name in bundle.MODULES + ["liblockstep.so.0.1"]}
        expected |= {"build/lib/libextra.so.3", "build/lib/libz.so.1", "commit"}
        folders = {"lockstep-gpu", "bench", "bench/gpu", "build", "build/bin", "build/lib", "docs"}
        self.assertEqual(names - folders, expected)
        patched = self.read("tools/patched").decode()
        self.assertRegex(patched, r"--set-rpath \$ORIGIN/../lib \S*/build/bin/mnist\n")
        self.assertRegex(patched, r"--set-rpath \$ORIGIN \S*/build/lib/libextra.so.3\n")

        self.run_bundle("again")
        archives = ["lockstep-gpu-data.tar.gz", "lockstep-gpu.tar.gz"]
        self.assertEqual(sorted(os.listdir(f"{self.top}/out")), archives)
        for name in archives:
            self.assertEqual(self.read(f"out/{name}"), self.read(f"again/{name}"))
        self.assertRegex(self.run_bundle(), r"out/lockstep-gpu.tar.gz exists; remove it")

    def test_data_is_every_tenth_image(self):
        self.assertEqual(bundle.every_tenth(images(40))[16:], bytes([0, 0, 10, 3, 20, 6, 30, 2]))
        self.assertEqual(bundle.every_tenth(images(40))[4:8], (4).to_bytes(4, "big"))
        for damaged in (images(40)[:-1], images(9), b"\0\0\x08\0" + bytes(4)):
            with self.assertRaisesRegex(ValueError, "damaged"):
                bundle.every_tenth(damaged)

    def test_what_is_missing_is_named(self):
        text = self.run_bundle()
        self.assertIn("bin/lockstep does not exist; build it with\n  cmake --preset", text)
        self.assertIn("nvcc, which it needs, is not in PATH", text)
        self.make_build()
        os.remove(f"{self.top}/lib/libextra.so.3")
        self.assertIn("libextra.so.3 is not found on this machine", self.run_bundle())
        os.remove(f"{self.top}/tools/patchelf")
        with mock.patch.dict(os.environ, PATH=f"{self.top}/tools"):
            self.assertRegex(self.run_bundle(), "is not installed .packages binutils")

    def test_nothing_is_left_of_a_failure(self):
        self.make_build()
        with mock.patch.object(bundle, "LIMIT_BYTES", 1000):
            self.assertIn("an archive may have 0 MiB", self.run_bundle())
        full = OSError(errno.ENOSPC, "No space left on device")
        with mock.patch.object(bundle.tarfile.TarFile, "add", side_effect=full):
            self.assertRegex(self.run_bundle(), "cannot write in .*/out: .*No space left on device")
        with open(f"{self.top}/data/t10k-labels-idx1-ubyte.gz", "wb") as file:
            file.write(b"no gzip")
        self.assertRegex(self.run_bundle(), "t10k-labels-idx1-ubyte.gz: Not a gzipped file")
        self.assertEqual(os.listdir(f"{self.top}/out"), [])

    def test_libraries_of_the_machine_are_not_packed(self):
        left_out = "libc.so.6 libm.so.6 libpthread.so.0 ld-linux-x86-64.so.2 linux-vdso.so.1"
        left_out += " libstdc++.so.6 libgcc_s.so.1 libcudnn.so.9"
        left_out += " libcublasLt.so.13 libcuda.so.1 libnvrtc.so.13 libnccl.so.2"
        packed = "libsodium.so.23 libcurl.so.4 libncursesw.so.6 libgomp.so.1"
        packed += " libcups.so.2 libmpfr.so.6"
        for name in left_out.split():
            self.assertFalse(bundle.has_to_be_packed(name), name)
        for name in packed.split():
            self.assertTrue(bundle.has_to_be_packed(name), name)


if __name__ == "__main__":
    unittest.main()
