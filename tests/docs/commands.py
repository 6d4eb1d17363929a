#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""commands.py ROOT BUILD PAGE...: every command of the pages (README.md, docs/*.md) is right.

A command is a line of four spaces whose first word is a program: of the build, of the tree, or in
FOREIGN. In a block that begins with one, every line is a command. The commands of a page run in
their order in a new folder, with small data, few steps, and stand-ins for ssh, mpirun and the like.
"# exits with N" behind a command is its exit code, and "# on MACHINE" marks one of several that run
together ("# on each": twice). What cannot run here (PARSED) is given to its program with --help
behind it, so that every flag is read; so is what the text has in backquotes.

Nothing else runs: a line with another program, as pip or apt-get, which would change the machine,
is in not_run.txt with the reason, and those programs are stand-ins that fail.
"""
import glob
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT, BUILD = (os.path.abspath(path) for path in sys.argv[1:3])
FASHION = "/usr/share/datasets/fashion-mnist"
SECONDS = 120  # of a command

TRAINING = ("mnist", "resnet", "imagenet", "gpt", "own_data", "own_sequence", "tacotron2")
OWN = TRAINING + ("lockstep", "torchrun", "elastic_ddp", "message_passing", "all_reduce_perf")
# These change nothing outside of the folder.
HARMLESS = ("cc", "cp", "mkdir", "export", "./mytrain", "./own_data")
REFUSED = ("pip", "apt-get", "podman", "spack", "tar")
FOREIGN = ("for", "(cd", "python3", "sox", "scripts/install-packages") + REFUSED
# Needs a card, other libraries or minutes: only the flags are read.
PARSED = re.compile(
    r"--device[ =]cuda|nccl|per-node gpu|--cuda-graph|\bmpi\b|gloo|^mpirun|^srun|--vs\b|--watch"
    r"|lockstep clean(?!.*--dry-run)|bench .*-e (1G|\d\dM)|_perf .*-e \d\dM|tacotron2|^gpt |-g 64"
    r"|--profile|DIR.*resnet50"
)
# Waits for other machines or needs cards: of these the flags of the launcher are read.
LAUNCHED = re.compile(r"--nnodes|per-node gpu|-n gpu")
FEW = {"lockstep data convert": "--per-class 4", "lockstep data speak": "--count 2"}
# Whose flags are all on the page.
FLAGS_OF = {
    "docs/launching.md": ("run",),
    "docs/checking.md": ("check", "clean"),
    "docs/data.md": ("data",),
}

SH = "#!/bin/sh\n"
STANDINS = {
    # Machines behind ssh are this one.
    "ssh": SH + 'while [ $# -gt 2 ]; do shift; done\nexec sh -c "$2"\n',
    "scp": SH + "exit 0\n",
    "ldconfig": SH + "exit 0\n",
    "sudo": SH + '[ -x "${0%/*}/$1" ] && exec "${0%/*}/$@"\n',
    # No MPI needs to be installed; flags have values.
    "mpirun": SH + 'while [ "${1#-}" != "$1" ]; do shift 2; done\nexec "$@"\n',
    "srun": SH + 'while [ "${1#-}" != "$1" ]; do\n'
    'case $1 in *=*) shift ;; *) shift 2 ;; esac\ndone\nexec "$@"\n',
    "cmake": SH + f'exec python3 "{HERE}/cmake_words.py" "{ROOT}" "$@"\n',
}
STANDINS.update((name, SH + f"echo {name} does not run in tests\nexit 1\n") for name in REFUSED)
PYTHONS = ("python", "PYTHON", "tools/bin/python")  # they read arguments only
RUN = OWN + HARMLESS + PYTHONS + tuple(name for name in STANDINS if name not in REFUSED)
PROGRAM = SH + "exit 0\n"
FILES = {
    "script": "import sys\nprint(*sys.argv[1:], flush=True)\n",
    "train.py": "import sys\nprint(*sys.argv[1:], flush=True)\n",
    "fail.py": 'import os, sys, time\nif os.environ["RANK"] == "0":\n    time.sleep(100)\n'
    "sys.exit(3)\n",
    "hosts": "node1 slots=1\nlocalhost slots=1\n",
}


def not_run():
    """The commands of not_run.txt by page."""
    listed = {}
    with open(os.path.join(HERE, "not_run.txt"), encoding="utf-8") as f:
        for line in f:
            if line.strip() and not line.startswith("#"):
                page, _, command = line.split(" -> ")[0].strip().partition(": ")
                listed.setdefault(page, []).append(command)
    return listed


# --- what a page says ---


def programs_of(line):
    """The programs that a command line starts."""
    command = line.split(" #")[0]
    for part in re.split(r"&&|\|\||;|\|", command):
        words = part.split()
        while words and re.match(r"[A-Z_]+=", words[0]):
            words = words[1:]
        if words and words[0] == "sudo":
            words = words[1:]
        yield words[0] if words else ""


def is_script(word):
    """A Python script of the tree that is not run beyond its arguments."""
    return word.startswith(("bench/", "python/")) and os.access(os.path.join(ROOT, word), os.X_OK)


def is_run(word):
    return word in RUN or word.endswith("_perf") or is_script(word)


def needs_what_is_missing(line):
    """tacotron2 is not built everywhere; lockstep data speak needs espeak-ng."""
    if "tacotron2" in line and not os.path.exists(f"{BUILD}/bin/tacotron2"):
        return True
    return "data speak" in line and shutil.which("espeak-ng") is None


def is_command(line):
    word = next(programs_of(line))
    in_tree = "/" in word and os.access(os.path.join(ROOT, word), os.X_OK)
    return is_run(word) or word in FOREIGN or in_tree


def blocks_of(text):
    """The blocks of lines of four spaces, lines that go on joined."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M)
    for block in re.findall(r"(?:^    [^\n]*\n)+", text, flags=re.M):
        lines = re.sub(r"\\\n\s*", "", block).splitlines()
        yield [line.strip() for line in lines if not line.strip().startswith("#")]


def examples_of(text):
    """The last cells of tables whose last column is headed "example"."""
    found, in_table = [], False
    for line in text.splitlines():
        in_table = line.startswith("|") and (in_table or line.endswith("| example |"))
        found += re.findall(r"\| `(lockstep run [^`]*)` \|$", line) if in_table else []
    return found


def quoted_in(text):
    """Commands of Lockstep's programs in backquotes."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M)
    for quoted in re.findall(r"`((?:%s) [^`]*)`" % "|".join(OWN), text):
        quoted = " ".join(quoted.replace("\\|", "|").split())
        if " -" in quoted and "..." not in quoted and all(map(is_run, programs_of(quoted))):
            yield quoted


def with_values(command):
    """Placeholders become values."""
    for name, value in (("PORT", "29555"), ("N", "2"), ("V", "8"), ("K", "2"), ("MIN", "1")):
        command = re.sub(rf"(?<=[ =]){name}(?=$| )", value, command)
    return command


# --- running ---


def write(path, text, mode=0o644):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    os.chmod(path, mode)


def shorten(program):
    """A program of the build that trains 2 steps, unless --steps is given."""
    return (
        '#!/bin/sh\ncase " $* " in *" --steps"*|*" say "*|*--help*) ;; *) set -- "$@" --steps 2 ;;'
        f' esac\nexec "{BUILD}/bin/{program}" "$@"\n'
    )


def python_standin():
    script = f'*.py) exec python3 "{HERE}/parsed.py" "$@" ;;\n'
    return (
        f'#!/bin/sh\ncase $1 in\n{script}-m) [ -e "{ROOT}/python/$(echo "$2" | tr . /).py" ] ||'
        ' [ "$2" = venv ] ;;\n*) exit 2 ;;\nesac\n'
    )


def make_folder(folder):
    """What the commands of a page find: the tree's files, stand-ins and small data."""
    for name, text in STANDINS.items():
        write(f"{folder}/bin/{name}", text, 0o755)
    for name in TRAINING:
        write(f"{folder}/bin/{name}", shorten(name), 0o755)
    for name in ("mpi_program", "open_mpi_program", "executable.py"):
        write(f"{folder}/{name}", PROGRAM, 0o755)
    for name in ("bin/PROG", "bin/train"):
        write(f"{folder}/{name}", PROGRAM, 0o755)
    for name in ("bin/python", "bin/PYTHON", PYTHONS[-1]):
        write(f"{folder}/{name}", python_standin(), 0o755)
    for name, text in FILES.items():
        write(f"{folder}/{name}", text)
    os.symlink(f"{folder}/bin/mnist", f"{folder}/mnist")
    for name in ("examples", "models", "include", "scripts", "python", "packaging", "docs"):
        os.symlink(f"{ROOT}/{name}", f"{folder}/{name}")
    for path in glob.glob(f"{ROOT}/bench/*") + glob.glob(f"{ROOT}/bench/gpu/*"):
        if os.access(path, os.X_OK) and os.path.isfile(path):
            standin = f'#!/bin/sh\nexec python3 "{HERE}/parsed.py" "{path}" "$@"\n'
            write(f"{folder}/{os.path.relpath(path, ROOT)}", standin, 0o755)
    convert = [f"{BUILD}/bin/lockstep", "data", "convert", FASHION, f"{folder}/DIR"]
    subprocess.run(convert + ["--per-class", "2"], check=True, stdout=subprocess.DEVNULL)
    os.makedirs(f"{folder}/build")
    os.symlink(f"{folder}/bin", f"{folder}/build/bin")
    for name in ("lib", "lockstep.pc", "tests"):
        os.symlink(f"{BUILD}/{name}", f"{folder}/build/{name}")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Page:
    """The commands of a page, in a folder of theirs."""

    def __init__(self, name, folder):
        self.name, self.folder = name, folder
        self.exports, self.failed, self.together = "", 0, []
        self.port = free_port()
        self.environment = dict(os.environ, HOME=folder)
        self.environment["PATH"] = f"{folder}/bin:{BUILD}/bin:{os.environ['PATH']}"
        self.environment.update(PET_RDZV_CONF="last_call_timeout=0")

    def start(self, command, **variables):
        return subprocess.Popen(
            ["sh", "-c", self.exports + command],
            cwd=self.folder,
            env=dict(self.environment, **variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def finish(self, process, line, expected):
        try:
            output = process.communicate(timeout=SECONDS)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output = process.communicate()[0] + f"no end after {SECONDS} s"
        if process.returncode not in expected:
            self.failed += 1
            print(f"{self.name}: {line}\n  exit code {process.returncode}, not {expected}:")
            print("".join(f"  {text}\n" for text in output.splitlines()[-25:]), flush=True)

    def await_machines(self):
        """Ends the commands that run together."""
        for process, line in self.together:
            self.finish(process, line, [0])
        self.together = []
        self.port = free_port()

    def start_machine(self, line):
        command = line.split("#")[0].replace("10.0.0.1", "127.0.0.1")
        command = command.replace(":29400", f":{self.port}")
        self.together.append((self.start(command, PET_MASTER_PORT=str(self.port)), line))

    def run(self, line):
        if line.endswith("# on each"):
            self.await_machines()
            self.start_machine(line)
            self.start_machine(line)
            self.await_machines()
        elif "# on " in line:
            self.start_machine(line)
        else:
            self.await_machines()
            self.run_alone(line)

    def run_alone(self, line):
        command = line.split(" #")[0].strip()
        if command.startswith("export "):
            self.exports += command + "\n"
            return
        for start, few in FEW.items():
            option = few.split()[0]
            if command.startswith(start) and option not in command:
                command += " " + few
        expected = [0]
        if "# exits with " in line:
            expected = [int(line.split("# exits with ")[1])]
        elif "lockstep check" in command:
            expected = [0, 1]  # this machine may have a problem
        self.finish(self.start(command), line, expected)

    def parsed(self, line):
        """A command whose programs read their flags and print their help."""
        command = with_values(line.split(" #")[0].strip())
        if LAUNCHED.search(command):
            return re.sub(r"^(.*?(?:lockstep run|torchrun))", r"\1 --help", command)
        return command + " --help"

    def try_line(self, line):
        if not all(is_run(word) for word in programs_of(line)):
            self.failed += 1
            print(f"{self.name}: neither run nor in not_run.txt: {line}")
        elif is_script(line.split()[0]):
            self.run(line if line.startswith("bench/") else f"python {line}")
        elif "# on " not in line and (PARSED.search(line) or LAUNCHED.search(line)):
            self.finish(self.start(self.parsed(line)), line, [0])
        elif "--isolate" not in line or self.isolates():
            self.run(line)

    def isolates(self):
        """Whether the kernel allows the namespaces of --isolate."""
        process = self.start("lockstep run --isolate true")
        process.communicate()
        return process.returncode == 0

    def flags_of(self, command):
        shown = self.start(f"{command} --help=all").communicate()[0]
        return re.findall(r"(?:^|[ ,])(--?[a-z0-9][a-z0-9_-]*)", shown, flags=re.I | re.M)

    def try_quoted(self, quoted):
        """It is read as a whole, or its flags are in the help of its programs."""
        process = self.start(self.parsed(quoted))
        process.communicate()
        if process.returncode == 0:
            return
        words = re.split(r"[ =]", quoted)
        commands = [word for word in words if word in TRAINING]
        commands.append(" ".join(words[:2]) if words[0] == "lockstep" else words[0])
        known = [flag for command in commands for flag in self.flags_of(command)]
        for flag in words:
            if flag.startswith("-") and flag.replace("_", "-") not in known:
                self.failed += 1
                print(f"{self.name}: {flag} is not in the help of {commands}: {quoted}")

    def check_flags(self, command, text):
        shown = self.start(f"lockstep {command} --help=all").communicate()[0]
        flags = re.findall(r"^ *(?:-[a-z], )?(--[a-z-]+)", shown, flags=re.M)
        missing = [flag for flag in flags if flag not in text and flag != "--help"]
        if missing or len(flags) < 3:
            self.failed += 1
            print(f"{self.name}: of {len(flags)} flags of lockstep {command} lacks {missing}")


def try_page(name, skipped):
    """Tries all commands of a page. The number of them, of failures, and unused exceptions."""
    with open(os.path.join(ROOT, name), encoding="utf-8") as f:
        text = f.read()
    lines = []
    for block in blocks_of(text):
        if block and is_command(block[0]):
            lines += [("line", line) for line in block]
    examples = examples_of(text)
    lines += [("line", example) for example in examples]
    lines += [("quoted", quoted) for quoted in quoted_in(text) if quoted not in examples]
    unused = set(skipped)
    with tempfile.TemporaryDirectory(prefix="ls-docs-") as folder:
        make_folder(folder)
        page = Page(name, folder)
        for kind, line in lines:
            if needs_what_is_missing(line):
                continue
            listed = [command for command in skipped if line.startswith(command)]
            unused.difference_update(listed)
            if not listed:
                (page.try_line if kind == "line" else page.try_quoted)(line)
        page.await_machines()
        for command in FLAGS_OF.get(name, ()):
            page.check_flags(command, text)
    return len(lines), page.failed, unused


def main():
    if not os.path.isdir(FASHION):
        print("skipped: dataset-fashion-mnist is not installed")
        sys.exit(77)
    exceptions = not_run()
    failed = 0
    for path in sys.argv[3:]:
        name = os.path.relpath(os.path.abspath(path), ROOT)
        n, n_failed, unused = try_page(name, exceptions.get(name, []))
        for command in sorted(unused):
            print(f"not_run.txt: {name} has no such command: {command}")
        failed += n_failed + len(unused)
        print(f"{name}: {n} commands, {n_failed} wrong", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
