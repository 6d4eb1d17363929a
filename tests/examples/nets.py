# SPDX-License-Identifier: Apache-2.0
"""nets.py BIN-DIR [all]: resnet and imagenet on tiny images, started in every way, with every flag
of their own."""

import json
import os
import random
import re
import shutil
import signal
import struct
import sys
import xml.etree.ElementTree
import zlib

from job import (OVER_NCCL, await_text, fake_nccl, finish, folder, free_port, launched, program,
                 ranks_of, run, run_tests, start, tensors)

ALL = "all" in sys.argv[2:]
SMALL = ("-a", "resnet18", "--image-size", "32", "--seed", "3", "-j", "2")
NO_FILES = ("--save", "", "--save-best", "")


# --- data ---

def write_png(path, width, height, rgb):
    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    rows = b"".join(b"\0" + rgb[y * width * 3:(y + 1) * width * 3] for y in range(height))
    with open(path, "wb") as f:
        f.write(
            b"\x89PNG\r\n\x1a\n"
            + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(rows))
            + chunk(b"IEND", b"")
        )


def make_folder(path):
    """train/ with 21 images and val/ with 15 of three classes, distinguished by their
    brightness."""
    noise = random.Random(1)
    for split, n in (("train", 7), ("val", 5)):
        for c in range(3):
            where = f"{path}/{split}/class{c}"
            os.makedirs(where)
            for i in range(n):
                w, h = noise.randrange(20, 50), noise.randrange(20, 50)
                write_png(
                    f"{where}/{i}.png",
                    w,
                    h,
                    bytes(c * 80 + noise.randrange(90) for _ in range(w * h * 3)),
                )
    return path


def make_cifar(path):
    """CIFAR-10's binary files with 40 and 11 images."""
    noise = random.Random(2)

    def records(n):
        return b"".join(
            bytes([i % 10]) + bytes((i % 10) * 20 + noise.randrange(50) for _ in range(3072))
            for i in range(n)
        )

    os.makedirs(path)
    for i in range(5):
        with open(f"{path}/data_batch_{i + 1}.bin", "wb") as f:
            f.write(records(8))
    with open(f"{path}/test_batch.bin", "wb") as f:
        f.write(records(11))
    return path


def rows(path):
    with open(path) as lines:
        return [json.loads(line) for line in lines]


def numbers(path):
    """What must not depend on how the ranks were started."""
    return [(r["loss"], r.get("accuracy"), r.get("test_loss")) for r in rows(path)]


# --- ways to start ---

def imagenet(data, *flags):
    return [program("imagenet"), data, *SMALL, "-b", "8", "--epochs", "1", *NO_FILES, *flags]


def by_launcher(command, _):
    run(*launched(2, *command))


def by_torchruns_flags(command, _):
    run(
        program("lockstep"),
        "run",
        "--nnodes=1",
        "--nproc_per_node=2",
        "--rdzv_id=100",
        "--rdzv_backend=c10d",
        f"--rdzv_endpoint=127.0.0.1:{free_port()}",
        *command,
    )


def by_itself(command, _):
    run(*command, "--multiprocessing-distributed", "--nproc", "2")


def as_mnist_does(command, _):
    run(*command, "-n", "1", "-g", "2", "-i", "0")


def on_two_nodes(command, home):
    """As on each of two machines: tcp://HOST:PORT of node 0, one rank each."""
    place = (
        "--dist-url",
        f"tcp://127.0.0.1:{free_port()}",
        "--dist-backend",
        "native",
        "--multiprocessing-distributed",
        "--world-size",
        "2",
        "--nproc",
        "1",
    )
    nodes = [
        start(*command, *place, "--rank", i, env={"HOME": home, "LOCKSTEP_THREADS": "1"})
        for i in "10"
    ]
    for node in nodes:
        finish(node)


def one_process_a_node(command, home):
    place = ("--dist-url", f"tcp://127.0.0.1:{free_port()}", "--world-size", "2")
    nodes = [
        start(*command, *place, "--rank", i, env={"HOME": home, "LOCKSTEP_THREADS": "1"})
        for i in "01"
    ]
    for node in nodes:
        finish(node)


def as_torch_distributed_launch(command, home):
    port = str(free_port())
    ranks = [
        start(
            *command,
            f"--local_rank={r}",
            env={
                "RANK": r,
                "LOCAL_RANK": r,
                "WORLD_SIZE": "2",
                "LOCAL_WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "HOME": home,
                "LOCKSTEP_THREADS": "1",
            },
        )
        for r in "01"
    ]
    for rank in ranks:
        finish(rank)


def by_mpirun(command, _):
    if shutil.which("mpirun"):
        run(*mpirun("mpirun"), *command)


def mpirun(name):
    own = (
        ("--allow-run-as-root", "--oversubscribe")
        if "open" in run(name, "--version").lower()
        else ()
    )
    return [name, *own, "-np", "2"]


def every_way_of_starting_gives_the_same_numbers():
    ways = [by_launcher, on_two_nodes]
    if ALL:
        ways += [
            by_torchruns_flags,
            by_itself,
            as_mnist_does,
            one_process_a_node,
            as_torch_distributed_launch,
            by_mpirun,
        ]
    with folder() as f:
        data = make_folder(f"{f}/images")
        for i, way in enumerate(ways):
            way(imagenet(data, "--metrics", f"{f}/{i}.jsonl"), f)
            if os.path.exists(f"{f}/{i}.jsonl"):
                assert numbers(f"{f}/{i}.jsonl") == numbers(f"{f}/0.jsonl"), way.__name__


def mpi_runs_synthetic_images():
    for name, backend in (("mpirun.openmpi", "mpi:openmpi"), ("mpirun.mpich", "mpi:mpich")):
        if shutil.which(name) and os.path.exists(
            f"{program('..')}/lib/liblockstep_{backend.replace(':', '-')}.so"
        ):
            output = run(
                *mpirun(name),
                program("resnet"),
                "--backend",
                "mpi",
                "--use_syn",
                "--steps_syn",
                "3",
                "--batch_size",
                "2",
                "--image_size",
                "32",
                "--arch",
                "resnet18",
                "--num_epochs",
                "1",
            )
            assert "3 steps on 2 ranks" in output, output


# --- resnet ---

def resnet(data, f, *flags):
    return [
        program("resnet"),
        "--data",
        data,
        "--arch",
        "resnet18",
        "--batch_size",
        "4",
        "--learning_rate",
        "0.01",
        "--model_dir",
        f"{f}/models",
        "--model_filename",
        "m.safetensors",
        *flags,
    ]


def resnet_resumes_in_mid_epoch_with_the_same_bits():
    with folder() as f:
        data = make_cifar(f"{f}/cifar")
        run(*launched(2, *resnet(data, f, "--num_epochs", "2", "--save", f"{f}/whole.safetensors")))
        run(*launched(2, *resnet(data, f, "--num_epochs", "2", "--steps", "7")))
        assert sorted(os.listdir(f"{f}/models")) == [
            "m.best.safetensors",
            "m.resume.safetensors",
            "m.safetensors",
        ]
        metrics = f"{f}/m.jsonl"
        output = run(
            *launched(2, *resnet(data, f, "--num_epochs", "2", "--resume", "--metrics", metrics))
        )
        run(program("lockstep"), "report", metrics, "-o", f"{f}/m.html")
        assert "test accuracy" in output, output
        assert tensors(f"{f}/models/m.safetensors") == tensors(
            f"{f}/whole.safetensors"
        ), "the weights differ"
        with open(f"{f}/m.html") as file:
            page = file.read()
        marked = xml.etree.ElementTree.fromstring(
            re.sub("<script.*?</script>", "", page, flags=re.DOTALL)
        )
        assert len(list(marked.iter("svg"))) == 9
        assert not re.search(r"https?:|src=|@import|url\(", page)


def synthetic_runs_need_no_files_and_leave_none():
    with folder() as f:
        output = run(
            program("resnet"),
            "--use-syn",
            "--steps-syn",
            "2",
            "--batch-size",
            "2",
            "--image-size",
            "40",
            "--arch",
            "resnet34",
            "--num-epochs",
            "1",
            "--random-seed",
            "7",
            "--local_rank",
            "0",
            cwd=f,
        )
        assert "2 steps on 1 rank," in output and not os.listdir(f), output


def resnet_takes_cifar_images_of_another_size():
    with folder() as f:
        data = make_cifar(f"{f}/cifar")
        output = run(
            *resnet(
                data, f, "--num_epochs", "1", "--image_size", "48", "--steps", "2", "--save", ""
            )
        )
        assert "2 steps on 1 rank," in output, output


def networks_run_over_nccl_on_the_cuda_device():
    with folder() as f:
        data = make_cifar(f"{f}/cifar")
        flags = ("--image_size", "8", "--steps", "1", "--save", "")
        dummy = (program("imagenet"), "--dummy", "-a", "resnet18", "-b", "4", *flags)
        for command in (resnet(data, f, "--num_epochs", "1", *flags), dummy):
            output = run(*launched(2, *command, *OVER_NCCL), env=fake_nccl())
            assert "1 step on 2 ranks," in output, output


# --- imagenet ---

def imagenet_keeps_latest_and_best_and_evaluates_them():
    with folder() as f:
        data = make_folder(f"{f}/images")
        flags = (*SMALL, "-b", "8", "--lr", "0.001", "--momentum", "0.8", "--wd", "1e-3", "-p", "1")
        output = run(*launched(2, program("imagenet"), data, *flags, "--epochs", "2"), cwd=f)
        assert "top-1" in output and "per rank)" in output, output
        want = [
            "checkpoint.resume.safetensors",
            "checkpoint.safetensors",
            "images",
            "model_best.safetensors",
        ]
        assert sorted(os.listdir(f)) == want, os.listdir(f)
        last = run(
            *launched(
                2, program("imagenet"), data, *flags, "-e", "--resume", "checkpoint.safetensors"
            ),
            cwd=f,
        )
        accuracy = re.search(
            r"test accuracy (\S+)  top-5 1.0000  loss (\S+)  of 15 samples on 2 ranks", last
        )
        assert accuracy and f"test accuracy {accuracy[1]}" in output, last
        best = run(
            program("imagenet"), data, *flags, "-e", "--pretrained", "model_best.safetensors", cwd=f
        )
        assert "of 15 samples on 1 rank," in best, best
        other = run(
            program("imagenet"),
            data,
            *SMALL,
            "-a",
            "resnet34",
            "-e",
            "--pretrained",
            "model_best.safetensors",
            code=1,
            cwd=f,
        )
        assert "layer4.2.bn2.running_var (512) float32 is missing" in other, other
        assert "layer1.2.conv1.weight (64, 64, 3, 3) float32 is missing" in other, other


def ranks_keep_equal_weights_with_depthwise_convolutions():
    with folder() as f:
        data = make_folder(f"{f}/images")
        output = run(
            *launched(
                2,
                *imagenet(
                    data,
                    "-a",
                    "mobilenet_v3_small",
                    "--check-replicas",
                    "1",
                    "--save",
                    f"{f}/w.safetensors",
                ),
            )
        )
        assert "on 2 ranks" in output, output
        assert "features.12.1.running_var" in tensors(f"{f}/w.safetensors"), output


def a_restart_goes_on_from_the_files_that_the_program_saves_by_itself():
    with folder() as f:
        images, cifar = make_folder(f"{f}/images"), make_cifar(f"{f}/cifar")
        programs = {
            "checkpoint": (program("imagenet"), images, *SMALL, "-b", "8", "--epochs", "10"),
            "models/m": resnet(cifar, f, "--num_epochs", "4"),
        }
        for name, command in programs.items():
            run(*launched(2, *command), cwd=f)
            undisturbed = tensors(f"{f}/{name}.safetensors")
            os.unlink(f"{f}/{name}.resume.safetensors")
            job = start(
                program("lockstep"), "run", "-n", "2", "--max-restarts", "1", *command, cwd=f
            )
            await_text(job, "rank 0| epoch 2/", "test accuracy")
            os.kill(ranks_of(job, want=2)[1], signal.SIGKILL)
            output = finish(job)
            assert "restart 1 of 1" in output, output
            assert re.search(f"resuming from .*{name}.resume.safetensors: epoch ", output), output
            assert tensors(f"{f}/{name}.safetensors") == undisturbed, "the weights differ"


def a_broken_image_is_named_and_skipped_as_asked():
    with folder() as f:
        data = make_folder(f"{f}/images")
        for path in (f"{data}/train/class1/3.png", f"{data}/val/class2/4.png"):
            with open(path, "r+b") as image:
                image.truncate(60)
        output = run(*imagenet(data), code=1)
        assert "class1/3.png" in output or "class2/4.png" in output, output
        output = run(
            *launched(2, *imagenet(data, "--bad-images", "skip", "--metrics", f"{f}/m.jsonl"))
        )
        last = rows(f"{f}/m.jsonl")[-1]
        assert last["test_samples"] == 14 and last["bad_images"] == 2, last
        assert (
            "class1/3.png" in output
            and "class2/4.png" in output
            and "skipped 2 broken images" in output
        ), output
        output = run(
            *launched(3, *imagenet(data, "--bad-images", "skip", "-b", "12", "--epochs", "6"))
        )
        assert "skipped 12 broken images" in output, output
        for name in ("class1/3.png", "class2/4.png"):
            assert output.count(name) == 1, (name, output)


def dummy_images_have_imagenets_classes():
    output = run(
        program("imagenet"),
        "--dummy",
        "-a",
        "resnet18",
        "--image-size",
        "32",
        "-b",
        "2",
        "--steps",
        "2",
        *NO_FILES,
    )
    assert "2 steps on 1 rank," in output, output


# Every argument of imagenet/main.py in pytorch/examples of August 2025, in all its spellings, with
# its default (None: another one here). A flag of two words has a value.
MAIN_PY = (
    ("-a resnet18", "resnet18"),
    ("--arch resnet18", "resnet18"),
    ("-j 1", "4"),
    ("--workers 1", "4"),
    ("--epochs 1", "90"),
    ("--start-epoch 0", ""),
    ("-b 8", "256"),
    ("--batch-size 8", "256"),
    ("--lr 0.01", "0.1"),
    ("--learning-rate 0.01", "0.1"),
    ("--momentum 0.8", "0.9"),
    ("--wd 0.001", "0.0001"),
    ("--weight-decay 0.001", "0.0001"),
    ("-p 5", "10"),
    ("--print-freq 5", "10"),
    ("--resume x.safetensors", None),
    ("-e", None),
    ("--evaluate", None),
    ("--pretrained", None),
    ("--world-size 1", "-1"),
    ("--rank 0", "-1"),
    ("--dist-url env://", None),
    ("--dist-backend gloo", None),
    ("--seed 3", None),
    ("--gpu 0", None),
    ("--no-accel", None),
    ("--multiprocessing-distributed", None),
    ("--dummy", None),
)


def imagenet_takes_every_flag_of_pytorchs_example():
    usage = run(program("imagenet"), "--help=all")
    for flag, default in MAIN_PY:
        name = flag.split()[0]
        shown = re.search(rf"^ .*(?<![-\w]){name}\b(?:.*\n(?! *-|\n))*.*", usage, re.MULTILINE)
        assert shown, f"{name} is not in the help"
        assert not default or f"({default})" in shown[0], shown[0]
    with folder() as f:
        make_folder(f"{f}/imagenet")  # the default DIR
        common = (program("imagenet"), "--image-size", "32", "--steps", "1", *NO_FILES)
        words = [
            w
            for flag, _ in MAIN_PY
            for w in flag.split()
            if flag.split()[0]
            not in (
                "--resume",
                "-e",
                "--evaluate",
                "--pretrained",
                "--multiprocessing-distributed",
                "--dummy",
            )
        ]
        output = run(*common, *words, cwd=f)
        assert "1 step on 1 rank," in output, output
        output = run(*common, "-b", "8", "--learning-rate", "0.25", "--no-accel", "-p", "1", cwd=f)
        assert " lr 0.25 " in output, output
        # --pretrained has no value there: nothing is downloaded here.
        for where in ((), ("imagenet",)):
            output = run(*common, "--pretrained", *where, "-a", "resnet34", code=1, cwd=f)
            assert "--pretrained needs a file of weights" in output, output
            assert "torchvision:resnet34" in output, output
        output = run(*common, "--resume", "nofile.pth.tar", code=1, cwd=f)
        assert "--resume nofile.pth.tar: no such file" in output, output


def wrong_flags_get_a_clear_line():
    def refused(words, *command, **options):
        output = run(*command, code=1, **options)
        assert words in output, f"no '{words}' from {command}\n{output}"

    name = program("imagenet")
    refused("DIR: no folder imagenet;", name)
    refused("DIR: no folder /nowhere;", name, "/nowhere", *SMALL)
    refused("resnet18", name, "/nowhere", "-a", "resnet19")
    two = ("--world-size", "2")
    refused("--rank", name, "/nowhere", *two, "--dist-url", "tcp://127.0.0.1:1")
    other_node = (*two, "--rank", "0", "--multiprocessing-distributed", "--nproc", "1")
    refused("tcp://", name, "--dummy", *other_node, "--dist-url", "file:///tmp/x")
    refused("did you mean --dist-url", name, "/nowhere", "--dist-ur", "x")
    refused("nccl", name, "/nowhere", "--dist-backend", "nccl")
    refused("cuda", name, "/nowhere", "--device", "cuda")
    refused("resnet18", program("resnet"), "--arch", "vgg15", "--use_syn")
    refused("CIFAR", program("resnet"), "--data", "/nowhere", "--save", "")
    with folder() as f:
        data = make_folder(f"{f}/images")
        refused("already rank", *launched(2, *imagenet(data, "--nproc", "2")), cwd=f)
        # In a folder where rank 0 may write: --save-best is checked before the ranks join.
        few = launched(2, name, data, *SMALL, "-b", "1")
        refused("need at least one image each", *few, cwd=f)


if __name__ == "__main__":
    quick = [
        every_way_of_starting_gives_the_same_numbers,
        imagenet_takes_every_flag_of_pytorchs_example,
        ranks_keep_equal_weights_with_depthwise_convolutions,
        wrong_flags_get_a_clear_line,
    ]
    longer = [
        mpi_runs_synthetic_images,
        resnet_resumes_in_mid_epoch_with_the_same_bits,
        synthetic_runs_need_no_files_and_leave_none,
        resnet_takes_cifar_images_of_another_size,
        networks_run_over_nccl_on_the_cuda_device,
        imagenet_keeps_latest_and_best_and_evaluates_them,
        a_restart_goes_on_from_the_files_that_the_program_saves_by_itself,
        a_broken_image_is_named_and_skipped_as_asked,
        dummy_images_have_imagenets_classes,
    ]
    run_tests(quick + (longer if ALL else []), needs=None)
