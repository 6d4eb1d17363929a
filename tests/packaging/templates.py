# SPDX-License-Identifier: Apache-2.0
"""templates.py SOURCE-DIR BIN-DIR: the templates of packaging/ for clusters.

The manifests have the form that Kubeflow's API says ($LS_TEST_PYTHON has kubeflow-trainer-api and
pyyaml), and launchers with the variables of their pods make one job. The job script trains by
itself and in a Slurm of fake nodes. The recipe of spack runs on stand-ins for spack's names.
hadolint reads the Containerfile, where it is installed.
"""
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import types

SOURCE, BIN = sys.argv[1:3]
PACKAGING = os.path.join(SOURCE, "packaging")
TOOL = os.path.join(BIN, "lockstep")
FOLDER = tempfile.mkdtemp()
missing = []


def read(*names):
    with open(os.path.join(*names), encoding="utf-8") as file:
        return file.read()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def clean_environment():
    ours = ("LOCKSTEP_", "PET_", "RANK", "WORLD_SIZE", "LOCAL_", "SLURM_", "JOB_COMPLETION")
    return {k: v for k, v in os.environ.items() if not k.startswith(ours)}


def run_pods(pods):
    """Starts a launcher with the variables of each pod; all ranks are there."""
    key = os.path.join(FOLDER, "key")
    with open(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write("ab" * 32)
    port = free_port()
    processes = []
    for pod in pods:
        assert pod["PET_MASTER_ADDR"] == "mnist-node-0-0.mnist", pod
        here = {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": port, "LOCKSTEP_KEY_FILE": key}
        command = [TOOL, "run", "sh", "-c", "echo rank $RANK of $WORLD_SIZE"]
        processes.append(
            subprocess.Popen(
                command,
                env={**clean_environment(), **pod, **here},
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        )
    output = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(pods), output
    for node, text in enumerate(output):
        for rank in (2 * node, 2 * node + 1):
            assert f"rank {rank} of 4" in text, output


def check_kubernetes():
    try:
        import yaml
        from kubeflow_trainer_api import models
    except ImportError:
        missing.append("the manifests (pyyaml, kubeflow-trainer-api)")
        return
    kinds = {
        "jobset.yaml": models.JobsetV1alpha2JobSet,
        "trainingruntime.yaml": models.TrainerV1alpha1TrainingRuntime,
    }
    containers = {}
    for name, kind in kinds.items():
        text = yaml.safe_load(read(PACKAGING, "kubernetes", name))
        # Fields that the API has not are dropped.
        assert kind.from_dict(text).to_dict() == text, f"{name}: not of the published schema"
        spec = text["spec"].get("template", text)["spec"]
        job = spec["replicatedJobs"][0]["template"]["spec"]
        containers[name] = job["template"]["spec"]["containers"][0]
        if name == "jobset.yaml":
            assert job["completionMode"] == "Indexed" and job["completions"] == 2
            misspelt = dict(text, spec=dict(text["spec"], replicatedJob=[]))
            assert kind.from_dict(misspelt).to_dict() != misspelt, "the schema refuses nothing"
    env = {e["name"]: e["value"] for e in containers["jobset.yaml"]["env"]}
    run_pods([{**env, "JOB_COMPLETION_INDEX": str(node)} for node in range(2)])
    # Kubeflow Trainer sets the node rank, too.
    trainer = {name: env[name] for name in ("PET_NNODES", "PET_NPROC_PER_NODE", "PET_MASTER_ADDR")}
    run_pods([{**trainer, "PET_NODE_RANK": str(node)} for node in range(2)])


def check_spack():
    class Base:
        spec = types.SimpleNamespace(satisfies=lambda text: text in Base.variants)
        variants = set()

        def define(self, name, value):
            return (name, value)

    seen = {}
    package = types.ModuleType("spack.package")

    def directive(name):
        seen[name] = []
        setattr(package, name, lambda *args, **options: seen[name].append((args, options)))

    for name in ("variant", "version", "depends_on", "license", "generator"):
        directive(name)
    package.CMakePackage = Base
    sys.modules["spack"] = types.ModuleType("spack")
    sys.modules["spack.package"] = package
    scope = {}
    exec(read(PACKAGING, "spack", "packages", "lockstep", "package.py"), scope)
    cmake = "".join(
        read(SOURCE, *name.split("/"))
        for name in ("CMakeLists.txt", "src/tensor/devices/cuda/CMakeLists.txt",
                     "models/speech/CMakeLists.txt")
    )
    recipe = scope["Lockstep"]()
    for variants, cuda in ((set(), "OFF"), ({"+cuda"}, "ON")):
        Base.variants = variants
        values = dict(recipe.cmake_args())
        assert values["LOCKSTEP_CUDA"] == cuda
        for name in values:
            assert re.search(rf"(option|set)\({name} ", cmake), f"{name}: no option of CMake"
    version = re.search(r"project\(lockstep VERSION ([0-9.]+)", cmake)[1]
    assert [a[0] for a, _ in seen["version"]] == [version]
    variants = {a[0] for a, _ in seen["variant"]}
    for _, options in seen["depends_on"]:
        assert options.get("when", "+onednn")[1:] in variants


def check_slurm():
    script = os.path.join(PACKAGING, "slurm", "mnist.sbatch")
    data = "/usr/share/datasets/fashion-mnist"
    if not os.path.isdir(data):
        missing.append("the job script (dataset-fashion-mnist)")
        return
    env = clean_environment()
    env["PATH"] = BIN + ":" + env["PATH"]
    for steps in ("3", "5"):  # the second time from the saved state
        done = subprocess.run(
            ["sh", script, "--steps", steps, "--epochs", "1"],
            cwd=FOLDER, env=env, text=True, capture_output=True, timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert os.listdir(os.path.join(FOLDER, "mnist-state"))
    # In a Slurm of three fake nodes.
    lab = os.path.join(SOURCE, "tests", "launch", "slurm_lab.sh")
    folder = os.path.join(FOLDER, "slurm")
    try:
        code = subprocess.run(["sh", lab, "up", folder], timeout=120, check=False).returncode
        if code == 77:
            missing.append("the job script in Slurm")
            return
        env["SLURM_CONF"] = os.path.join(folder, "slurm.conf")
        subprocess.run(
            ["sbatch", "-Q", "-W", "-o", "batch.out", script, "--steps", "3", "--epochs", "1"],
            cwd=folder, env=env, timeout=300, check=False,
        )
        output = read(folder, "batch.out")
        assert "on 4 ranks" in output, output
    finally:
        subprocess.run(["sh", lab, "down", folder], timeout=120, check=False)


def check_containerfile():
    text = read(PACKAGING, "Containerfile")
    packages = re.findall(r"/packages/([a-z0-9.-]+)_", text)
    control = read(PACKAGING, "debian", "control")
    for package in packages:
        assert f"Package: {package}\n" in control, package
    folders = os.path.dirname(sys.executable) + ":" + os.environ["PATH"]
    hadolint = shutil.which("hadolint", path=folders)
    if hadolint is None:
        missing.append("hadolint")
        return
    subprocess.run([hadolint, os.path.join(PACKAGING, "Containerfile")], check=True, timeout=60)


try:
    check_kubernetes()
    check_spack()
    check_slurm()
    check_containerfile()
finally:
    shutil.rmtree(FOLDER)
print("templates: all as expected" + (f"; not checked: {', '.join(missing)}" if missing else ""))
