# SPDX-License-Identifier: Apache-2.0
"""programs.py BIN-DIR: the example programs, started in every way that one machine offers."""
import contextlib
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import termios
import time

from job import (
    DATA,
    SLOW,
    OVER_NCCL,
    await_text,
    fake_nccl,
    finish,
    folder,
    free_port,
    launched,
    mnist,
    part_of_data,
    program,
    ranks_of,
    run,
    run_tests,
    start,
    tensors,
)

STEPS = ("--steps", "4" if SLOW else "12")
SMALL = ("--batch-size", "10" if SLOW else "100")


def elastic_ddp_says_one_whole_line_a_rank():
    lines = run(*launched(3, program("elastic_ddp"))).splitlines()
    want = [f"rank {r}| Start running basic DDP example on rank {r}." for r in range(3)]
    assert sorted(line for line in lines if "Start" in line) == want, lines


def message_passing_ends_on_every_rank():
    for n in (1, 2, 4):
        output = run(*launched(n, program("message_passing")))
        assert output.count("has received 1 from rank 0") == n - 1, output


def own_data_learns_the_spirals_on_one_and_two_ranks():
    for ranks in (1, 2):
        flags = ("--epochs", "2") if SLOW else ()
        output = run(*launched(ranks, program("own_data"), *flags))
        loss = float(re.search(r"steps on \d ranks?, loss ([\d.]+)", output)[1])
        assert loss < (0.7 if SLOW else 0.1), output


def own_sequence_classifies_held_out_sentences():
    for ranks in (2, 3):  # one thread each: short sequences gain nothing from more
        flags = ("--steps", "8", "--width", "8") if SLOW else ()
        output = run(*launched(ranks, program("own_sequence"), *flags))
        best = re.search(r"best accuracy ([\d.]+)", output)
        assert SLOW or float(best[1]) > 0.98, output


def every_way_of_starting_two_ranks_gives_the_same_bits():
    with folder() as f:
        results = []
        flags = (*STEPS, "--save", f"{f}/w.safetensors")

        def keep():
            results.append(tensors(f"{f}/w.safetensors"))
            os.unlink(f"{f}/w.safetensors")

        run(*launched(2, *mnist(*flags)))
        keep()
        run(*mnist(*flags, "-n", "1", "-g", "2", "-i", "0"))
        keep()
        run(*launched(2, *mnist(*flags)), env={"LOCKSTEP_TRANSPORT": "tcp"})
        keep()
        port = str(free_port())
        ranks = [
            start(
                *mnist(*flags),
                env={
                    "RANK": str(r),
                    "LOCAL_RANK": str(r),
                    "WORLD_SIZE": "2",
                    "LOCAL_WORLD_SIZE": "2",
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": port,
                    "HOME": f,
                },
            )
            for r in (0, 1)
        ]
        for rank in ranks:
            finish(rank)
        keep()
        place = f"127.0.0.1:{free_port()}"
        nodes = [
            start(
                *mnist(*flags, "-n", "2", "-g", "1,1", "-i", i, "--master", place),
                env={"HOME": f, "LOCKSTEP_THREADS": "1"},
            )
            for i in "10"
        ]
        for node in nodes:
            finish(node)
        keep()
        if shutil.which("mpirun"):
            run("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", *mnist(*flags))
            keep()
        for other in results[1:]:
            assert other == results[0], "the weights differ"


def metrics_are_json_lines():
    with folder() as f:
        run(*launched(2, *mnist("--steps", "40", *SMALL, "--metrics", f"{f}/m.jsonl")))
        with open(f"{f}/m.jsonl") as lines:
            rows = [json.loads(line) for line in lines]
        assert len(rows) == 2, rows
        for row in rows:
            assert {"epoch", "step", "loss", "lr", "samples_per_s"} <= set(row), row
        assert rows[1]["loss"] < rows[0]["loss"], rows


def the_bar_shows_what_was_measured_only():
    # As a terminal behind the pipe.
    output = run(*mnist("--steps", "60", *SMALL), env={"LOCKSTEP_TTY": "80"})
    assert (
        "step " in output and "loss 0.0000" not in output and " 0 samples/s" not in output
    ), output


def on_terminal(columns, *command):
    """What a command shows on a terminal of this width: the texts between returns, no escapes."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    while True:
        try:
            read = os.read(ours, 65536)
        except OSError:  # the last writer has closed it
            break
        shown += read
    os.close(ours)
    assert process.wait(60) == 0, shown
    text = re.sub("\x1b\\[[?0-9;]*[a-zA-Z]", "", shown.decode())
    return re.split("[\r\n]+", text)


def progress_line_and_help_fit_the_terminal():
    flags = ("--epochs", "1", "--steps", "2" if SLOW else "100", *SMALL)
    for command in (mnist(*flags), launched(2, *mnist(*flags))):
        bars = [line for line in on_terminal(80, *command)
                if "epoch 1/1  " in line and "  step " in line]
        assert all(len(line) <= 80 for line in bars), bars
        assert SLOW or any("samples/s" in line and "ETA" in line for line in bars), bars
    for name in ("mnist", "resnet", "imagenet"):
        for flag in ("--help", "--help=all"):
            assert max(len(line) for line in run(program(name), flag).splitlines()) <= 80, name
            assert max(len(line) for line in on_terminal(60, program(name), flag)) <= 60, name


def a_stopped_run_resumes_with_the_same_bits():
    with folder() as f:
        whole, parts = f"{f}/whole.safetensors", f"{f}/parts.safetensors"
        flags = ("--steps", "60", *SMALL, "--schedule", "constant")
        run(*launched(2, *mnist(*flags, "--save", whole)))
        job = start(*launched(2, *mnist(*flags, "--save", parts, "--metrics", f"{f}/m.jsonl")))
        end = time.monotonic() + 60
        while time.monotonic() < end and not (
            os.path.exists(f"{f}/m.jsonl") and os.path.getsize(f"{f}/m.jsonl")
        ):
            time.sleep(0.01)
        job.send_signal(signal.SIGTERM)
        output = finish(job, None)
        stopped = re.search(r"stopped (by SIGTERM )?at step ", output)
        # After the last step the signal stops no training; the launcher may still have received it.
        assert job.returncode in (
            (143,) if stopped else (0, 143)
        ), f"ended with {job.returncode}\n{output}"
        assert stopped or tensors(parts) == tensors(whole)
        run(*launched(2, *mnist(*flags, "--save", parts, "--resume")))
        assert tensors(parts) == tensors(whole), "the weights differ"


def reports_list_all_ranks_of_a_group_that_shrinks_and_grows():
    with folder() as f:
        saved = f"{f}/w.safetensors"
        flags = ("--shards", "3", "--epochs", "1000000", "--metrics", f"{f}/m.jsonl")
        elastic = ("--elastic", "--max-restarts", "60000")
        command = launched(3, *elastic, program("own_data"), *flags, "--save", saved)
        job = start(*command, env={"LOCKSTEP_THREADS": "1"})
        found = ranks_of(job, want=3)

        def wait_for(ranks, lost=None):
            """Until two more reports are of so many ranks. `lost` is killed whenever it starts."""
            end = time.monotonic() + 100
            lines = []
            before = None
            while sum(len(line["rank_seconds"]) == ranks for line in lines[before:]) < 2:
                assert time.monotonic() < end and job.poll() is None, finish(job, None)
                if lost in (there := ranks_of(job)):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(there[lost], signal.SIGKILL)
                time.sleep(0.002)
                if os.path.exists(f"{f}/m.jsonl"):
                    with open(f"{f}/m.jsonl") as lists:
                        text = lists.read().rpartition("\n")[0]
                    lines = [json.loads(line) for line in text.splitlines()]
                    before = len(lines) if before is None else before

        wait_for(3)
        os.kill(found[1], signal.SIGKILL)
        wait_for(2, lost=2)
        wait_for(3)
        job.send_signal(signal.SIGTERM)
        output = finish(job, None)
        assert job.returncode == 143, output
        step = int(re.search(r"stopped (?:by SIGTERM )?at step (\d+)", output)[1])
        with open(saved.replace(".safetensors", ".resume.safetensors"), "rb") as state:
            assert b'"step":"%d"' % step in state.read(), f"not saved at step {step}\n{output}"
        for sign in ("did not end", "SIGABRT", "SIGSEGV", "AddressSanitizer"):
            assert sign not in output, output


def nodes_with_different_lists_both_report_it():
    with folder() as f:
        place = f"127.0.0.1:{free_port()}"

        # So short that LeakSanitizer's tracer sometimes meets exiting threads and dies.
        def machine(*flags):
            environment = {"HOME": f, "LSAN_OPTIONS": "detect_leaks=0"}
            return start(*mnist("--steps", "1", *flags, "--master", place), env=environment)

        first = machine("-n", "2", "-g", "1,2", "-i", "0")
        second = machine("-n", "2", "-g", "1,1", "-i", "1")
        for output in (finish(second, code=1), finish(first, code=1)):
            assert "-g 1,2" in output and "-g 1,1" in output, output
        first = machine("-n", "2", "-g", "1,2", "-i", "0")
        other = finish(machine("-n", "3", "-g", "1,2,1", "-i", "1"), code=1)
        assert "-n" in other or "--nnodes" in other, other
        assert "--nnodes" in finish(first, code=1)
        assert "MASTER_ADDR" in run(*mnist("-n", "2", "-g", "1,1", "-i", "0"), code=1)


def two_machines(of_first, of_second, code=0):
    """Both outputs of mnist, started by hand on two machines with flags of their own."""
    with folder() as f:
        place = f"127.0.0.1:{free_port()}"
        nodes = [
            start(
                *mnist(*STEPS, "-n", "2", "-g", "1,1", "-i", i, "--master", place, *more),
                env={"HOME": f, "LOCKSTEP_THREADS": "1"},
            )
            for i, more in (("0", of_first), ("1", of_second))
        ]
        return [finish(node, code) for node in nodes]


def machines_with_different_flags_both_report_it():
    for output in two_machines(("--accumulate", "2"), ("--lr", "0.3"), code=1):
        assert "--accumulate: 2 on rank 0 (" in output, output
        assert "), 1 on rank 1 (" in output, output


def only_the_first_machine_needs_the_flags_of_files():
    with folder() as f:
        saved = ("--save", f"{f}/w.safetensors")
        two_machines((*saved, "--metrics", f"{f}/m.jsonl"), ())
        assert os.path.exists(f"{f}/m.jsonl") and os.path.exists(f"{f}/w.safetensors")
        output = two_machines((*saved, "--resume", "--steps", "14"), ("--steps", "14"))[0]
        assert "resuming from" in output and "14 steps" in output, output
        for output in two_machines((), saved, code=1):
            assert "--save: not given on rank 0 (" in output, output


def a_new_member_with_other_flags_leaves_an_elastic_job_going_on():
    """The replacement of a killed rank gets another --lr: it fails by name, the others go on."""
    with folder() as f:
        script = f"{f}/train.sh"
        with open(script, "w") as text:
            text.write(
                '[ "$LOCKSTEP_NEW_MEMBER" = 1 ] && set -- "$@" --lr 0.5\n'
                f'exec {program("own_data")} "$@"\n'
            )
        flags = ("--epochs", "1000000", "--metrics", f"{f}/m.jsonl")
        job = start(
            *launched(3, "--elastic", "--max-restarts", "2", "sh", script, *flags),
            env={"LOCKSTEP_THREADS": "1"},
        )
        try:
            await_text(job, "epoch")
            os.kill(ranks_of(job, want=3)[1], signal.SIGKILL)
            await_text(job, "--lr: 0.01 on rank 0 (", "), 0.5 on rank")
            await_text(job, "going on at step", "with 2 ranks")
        finally:
            job.send_signal(signal.SIGTERM)
            output = finish(job, None)
        assert job.returncode == 143, output


def read_until(pipe, condition):
    """Reads from a pipe that is not blocking."""
    text = b""
    while not condition(text):
        assert select.select([pipe], [], [], 120)[0], text
        text += pipe.read() or b""
    return text


def fill(pipe):
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe, b" ")


def waits_in_pipe(pid):
    with open(f"/proc/{pid}/wchan", encoding="ascii") as f:
        return "pipe" in f.read()


def the_report_of_a_first_rank_that_dies_while_it_writes_is_written_by_the_next():
    """Rank 0 is killed while the full pipe of --metrics makes it wait."""
    with folder() as f:
        os.mkfifo(f"{f}/m")
        pipe = os.open(f"{f}/m", os.O_RDWR | os.O_NONBLOCK)
        flags = ("--epochs", "1000000", "--print-freq", "1", "--metrics", f"{f}/m")
        job = start(
            *launched(3, "--elastic", "--max-restarts", "2", program("own_data"), *flags),
            env={"LOCKSTEP_THREADS": "1"},
        )
        try:
            with open(pipe, "rb", buffering=0) as lines:
                text = read_until(lines, lambda text: text.count(b"\n") > 3)
                first = ranks_of(job, want=3)[0]
                while not waits_in_pipe(first):
                    fill(pipe)
                time.sleep(0.3)  # the others have the report by then; otherwise they repeat it
                os.kill(first, signal.SIGKILL)
                await_text(job, "was killed by signal 9")
                text += lines.readall()
                text += read_until(lines, lambda text: text.count(b"\n") > 3)
        finally:
            job.send_signal(signal.SIGTERM)
            output = finish(job, None)
        found = [json.loads(line) for line in text.decode().splitlines() if line.strip(" ")]
        steps = {line["step"] for line in found if "loss" in line}
        assert steps == set(range(1, max(steps) + 1)), (sorted(steps), output)


def a_rank_that_dies_after_the_last_step_of_an_epoch_leaves_the_others_going_on():
    """All 2000 samples have been trained on: the last of 14 steps on 3 ranks is filled up."""
    with folder() as f:
        os.mkfifo(f"{f}/m")
        pipe = os.open(f"{f}/m", os.O_RDWR | os.O_NONBLOCK)
        fill(pipe)
        flags = ("--epochs", "1000000", "--print-freq", "14", "--metrics", f"{f}/m")
        job = start(
            *launched(3, "--elastic", program("own_data"), *flags), env={"LOCKSTEP_THREADS": "1"}
        )
        try:
            with open(pipe, "rb", buffering=0) as lines:
                first = ranks_of(job, want=3)[0]
                while not waits_in_pipe(first):
                    time.sleep(0.01)
                os.kill(first, signal.SIGKILL)
                await_text(job, "was killed by signal 9")
                lines.readall()
                await_text(job, "going on at step 14 with 2 ranks")
                read_until(lines, lambda text: text.count(b"\n") > 3)
        finally:
            job.send_signal(signal.SIGTERM)
            output = finish(job, None)
        assert job.returncode == 143, output


def wrong_flags_and_files_get_a_clear_line():
    assert "did you mean --epochs" in run(*mnist("--epoch", "3"), code=1)
    assert "/nowhere" in run(program("mnist"), "--data", "/nowhere", code=1)
    with folder() as f:
        for name in ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"):
            with open(f"{DATA}/{name}", "rb") as source, open(f"{f}/{name}", "wb") as copy:
                copy.write(source.read()[:5000])
        output = run(program("mnist"), "--data", f, code=1)
        assert "train-" in output and "ubyte.gz" in output, output


def two_ranks_learn_on_the_cuda_device_as_on_the_processor():
    steps = 1 if SLOW else 4
    # With the default rate the loss grows, and with it the differences in rounding.
    flags = ("--steps", str(steps), "--batch-size", "10", "-p", "1", "--lr", "0.001")
    losses = []
    for device in ("cpu", "cudahost"):
        output = run(*launched(2, *mnist(*flags, "--device", device)))
        losses.append([float(loss) for loss in re.findall(r"step \d+  loss ([\d.]+)", output)])
    assert len(losses[0]) == steps and len(losses[1]) == steps, losses
    assert all(abs(a - b) <= 2e-4 for a, b in zip(*losses)), losses


def programs_run_over_nccl_on_the_cuda_device():
    with folder() as f:
        flags = ("--steps", "1", "--batch-size", "4")
        for command, want in (
            ((program("elastic_ddp"),), "Start running basic DDP example on rank 1."),
            ((program("message_passing"),), "Rank 1 has received 1 from rank 0."),
            (mnist(*flags, data=part_of_data(f"{f}/data", 100)), "1 step on 2 ranks"),
        ):
            output = run(*launched(2, *command, *OVER_NCCL), env=fake_nccl())
            assert want in output, output


def a_card_with_too_little_memory_is_an_error_with_advice():
    flags = ("--steps", "2", "--batch-size", "100", "--device", "cudahost")
    output = run(*mnist(*flags), code=1, env={"GPU_HOST_BYTES": "20000000"})
    assert "out of memory on cudahost:0: " in output and "Lower --batch-size" in output, output


def more_ranks_than_cards_are_refused():
    command = (*launched(2, program("mnist")), "--data", "/nonexistent", "--device", "cudahost")
    one_card = {"GPU_HOST_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"}
    output = run(*command, code=1, timeout=60, env=one_card)
    assert (
        "LOCAL_RANK 1, but 1 CUDA device is visible (CUDA_VISIBLE_DEVICES: 0): "
        "start at most 1 rank on this machine; or use --share-gpu" in output
    ), output
    output = run(*command, "--share-gpu", code=1, timeout=60, env=one_card)
    assert "CUDA" not in output and "/nonexistent" in output, output


def gpus_counts_the_cards_of_the_node():
    place = ("--master", f"127.0.0.1:{free_port()}")
    two_nodes = ("-n", "2", "-g", "8,2", "-i", "0", "--data", "/nonexistent", *place)
    command = (program("mnist"), *two_nodes, "--device", "cudahost")
    output = run(*command, code=1, timeout=60)
    assert "--gpus 8,2: 8 ranks on this node, which has 2 GPUs: " in output, output
    assert "--share-gpu" in output and "waiting for" not in output, output
    enough = ("-n", "2", "-g", "2,1", "--data", "/nonexistent", *place, "--device", "cudahost")
    for node in [start(program("mnist"), *enough, "-i", i) for i in "01"]:
        output = finish(node, code=1)
        assert "/nonexistent" in output and "ranks on this node" not in output, output


def imagenet_starts_a_rank_for_each_card():
    command = (program("imagenet"), "--multiprocessing-distributed", "--device", "cudahost")
    short = ("--dummy", "-a", "resnet18", "--image-size", "8", "-b", "6", "--steps", "1")
    no_files = ("--save", "", "--save-best", "")
    output = run(*command, *short, *no_files, env={"GPU_HOST_DEVICES": "3"})
    assert "1 step on 3 ranks" in output, output


def missing_backends_and_devices_are_refused_before_any_rank_waits():
    place = f"127.0.0.1:{free_port()}"
    nothing = ("--data", "/nonexistent")
    two_nodes = ("-n", "2", "-g", "1, 1", "-i", "0", "--master", place)
    for command in (
        (program("mnist"), *nothing),
        (program("mnist"), *nothing, *two_nodes),
        (program("imagenet"), "/nonexistent"),
        (
            program("imagenet"),
            "/nonexistent",
            "--dist-url",
            f"tcp://{place}",
            "--world-size",
            "2",
            "--rank",
            "0",
        ),
        (
            program("imagenet"),
            "/nonexistent",
            "--dist-url",
            f"tcp://{place}",
            "--multiprocessing-distributed",
            "--nproc",
            "1",
            "--world-size",
            "2",
            "--rank",
            "0",
        ),
        launched(2, program("mnist"), *nothing),
    ):
        flag = "--dist-backend" if program("imagenet") in command else "--backend"
        no_library = {"LOCKSTEP_NCCL_LIBRARY": "/nowhere/libnccl.so.2"}
        on_cpu = (*command, flag, "nccl", "--device", "cpu")
        output = run(*on_cpu, code=1, timeout=60, env=no_library)
        assert (
            "backend nccl: LOCKSTEP_NCCL_LIBRARY cannot be loaded" in output
            and "available here: native" in output
        ), output
        assert "waiting for" not in output and "/nonexistent" not in output, output
        output = run(*command, flag, "nccl", code=1, timeout=60, env={"CUDA_VISIBLE_DEVICES": ""})
        assert "--backend nccl computes on GPUs, unless --device is given: " in output, output
        assert "available here: cpu (the default)" in output, output
        assert "waiting for" not in output and "/nonexistent" not in output, output
        for device, reason in (
            ("npu", "device npu is not part of this installation"),
            ("cudahost", "no CUDA device: no driver (libcuda.so.1 not found)"),
        ):
            no_driver = {"GPU_HOST_DRIVER": "0"}
            output = run(*command, "--device", device, code=1, timeout=60, env=no_driver)
            assert reason in output and "available here: cpu (the default)" in output, output
            assert "cpu_ref" not in output and "waiting for" not in output, output
            assert "/nonexistent" not in output, output
    # MPI's ranks cannot be started by the program itself.
    with folder() as f:
        one_of_two = (
            program("imagenet"),
            f,
            "--dist-url",
            f"tcp://{place}",
            "--multiprocessing-distributed",
            "--nproc",
            "1",
            "--world-size",
            "2",
            "--rank",
            "0",
        )
        for command in (mnist(*two_nodes), one_of_two):
            output = run(*command, "--backend", "mpi", code=1, timeout=60)
            assert "backend mpi" in output and "waiting for" not in output, output


if __name__ == "__main__":
    run_tests(
        [
            elastic_ddp_says_one_whole_line_a_rank,
            message_passing_ends_on_every_rank,
            own_data_learns_the_spirals_on_one_and_two_ranks,
            own_sequence_classifies_held_out_sentences,
            every_way_of_starting_two_ranks_gives_the_same_bits,
            metrics_are_json_lines,
            the_bar_shows_what_was_measured_only,
            progress_line_and_help_fit_the_terminal,
            a_stopped_run_resumes_with_the_same_bits,
            reports_list_all_ranks_of_a_group_that_shrinks_and_grows,
            nodes_with_different_lists_both_report_it,
            machines_with_different_flags_both_report_it,
            only_the_first_machine_needs_the_flags_of_files,
            a_new_member_with_other_flags_leaves_an_elastic_job_going_on,
            the_report_of_a_first_rank_that_dies_while_it_writes_is_written_by_the_next,
            a_rank_that_dies_after_the_last_step_of_an_epoch_leaves_the_others_going_on,
            wrong_flags_and_files_get_a_clear_line,
            two_ranks_learn_on_the_cuda_device_as_on_the_processor,
            programs_run_over_nccl_on_the_cuda_device,
            a_card_with_too_little_memory_is_an_error_with_advice,
            more_ranks_than_cards_are_refused,
            gpus_counts_the_cards_of_the_node,
            imagenet_starts_a_rank_for_each_card,
            missing_backends_and_devices_are_refused_before_any_rank_waits,
        ]
    )
