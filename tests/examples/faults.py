# SPDX-License-Identifier: Apache-2.0
"""faults.py BIN-DIR: what is killed while it trains."""
import os
import random
import re
import signal
import time

from job import (DATA, ROUNDS, SLOW, assert_nothing_left, await_text, finish, folder, job_of,
                 launched, mnist, part_of_data, ranks_of, run, run_tests, start, state, tensors)

SEED = random.randrange(1 << 30)
RANDOM = random.Random(SEED)
N = 3


def wait_gone(pids, within):
    end = time.monotonic() + within
    while any(state(p) not in ("", "Z") for p in pids) and time.monotonic() < end:
        time.sleep(0.005)
    return [p for p in pids if state(p) not in ("", "Z")]


def training(*flags, n=N, data=DATA, **options):
    command = mnist("--epochs", "1000", "-p", "20", *flags, data=data)
    return start(*launched(n, *command), **options)


def trained(launcher, n=N):
    """The processes of the ranks once all of them have made steps together."""
    await_text(launcher, "rank 0| ", " step ")
    return ranks_of(launcher, want=n)


def a_killed_rank_ends_all_others_by_name():
    for _ in range(ROUNDS):
        launcher = training()
        ranks = ranks_of(launcher, want=N)
        job = job_of(ranks[0])
        time.sleep(RANDOM.uniform(0.05, 2.0) * (4 if SLOW else 1))
        victim = RANDOM.randrange(N)
        os.kill(ranks[victim], signal.SIGKILL)
        left = wait_gone([p for r, p in ranks.items() if r != victim], 20)
        output = finish(launcher, 137, timeout=20)
        assert not left, f"seed {SEED}: ranks {left} outlived rank {victim}\n{output}"
        assert (
            f"rank {victim} (pid {ranks[victim]}) was killed by signal 9 (SIGKILL)" in output
        ), output
        assert_nothing_left(job)


def other_ranks_report_the_killed_rank():
    launcher = training()
    os.kill(trained(launcher)[1], signal.SIGKILL)
    output = finish(launcher, 137, timeout=20)
    lines = re.findall(r"^ranks? (.*)\| mnist: rank 1 .* was killed", output, re.MULTILINE)
    assert sorted(",".join(lines).split(",")) == ["0", "2"], output


def a_killed_launcher_leaves_nothing():
    for _ in range(ROUNDS):
        launcher = training()
        job = job_of(ranks_of(launcher, want=N)[0])
        time.sleep(RANDOM.uniform(0.0, 1.0))
        launcher.kill()
        launcher.communicate(timeout=20)
        assert_nothing_left(job)


def killed_while_saving_there_is_always_a_state_to_resume_from():
    with folder() as f:
        os.mkdir(f"{f}/saved")
        data = part_of_data(f"{f}/data", 2000)
        flags = ("--save", f"{f}/saved/w.safetensors", "--batch-size", "500")
        run(*launched(2, *mnist("--epochs", "1", *flags, data=data)))
        for _ in range(ROUNDS):
            launcher = training(*flags, "--resume", n=2, data=data)
            ranks = ranks_of(launcher, want=2)
            time.sleep(RANDOM.uniform(0.3, 3.0))
            os.kill(ranks[0], signal.SIGKILL)
            finish(launcher, 137, timeout=20)
            assert "fc.weight" in tensors(f"{f}/saved/w.safetensors")
            assert "model.fc.weight" in tensors(f"{f}/saved/w.resume.safetensors")
        names = ("w.safetensors", "w.best.safetensors", "w.resume.safetensors")
        allowed = {name + end for name in names for end in ("", ".tmp")}
        assert set(os.listdir(f"{f}/saved")) <= allowed, os.listdir(f"{f}/saved")


def stopped_rank_is_named_and_continues_with_the_same_bits():
    with folder() as f:
        undisturbed, stopped = f"{f}/a.safetensors", f"{f}/b.safetensors"
        flags = ("--steps", "60", "--schedule", "constant", "--save")
        run(*launched(2, *mnist(*flags, undisturbed)))
        launcher = start(*launched(2, *mnist("-p", "20", *flags, stopped)),
                         env={"LOCKSTEP_LATE_MS": "1000"})
        victim = trained(launcher, 2)[1]
        os.kill(victim, signal.SIGSTOP)
        await_text(launcher, "lockstep:", " 1 (pid ", "stopped")
        os.kill(victim, signal.SIGCONT)
        finish(launcher)
        assert tensors(undisturbed) == tensors(stopped), "the weights differ"


def stop_in_a_save(rank, where):
    """Stops the process while it writes a file there: a file.tmp exists before and after the
    stop."""
    end = time.monotonic() + 240
    while time.monotonic() < end:
        written = [name for name in os.listdir(where) if name.endswith(".tmp")]
        if not written:
            continue
        os.kill(rank, signal.SIGSTOP)
        while state(rank) != "T":
            time.sleep(0.001)
        if all(os.path.exists(f"{where}/{name}") for name in written):
            return
        os.kill(rank, signal.SIGCONT)
    raise AssertionError("rank 0 did not save")


def saved_at(path):
    return os.stat(path).st_mtime_ns if os.path.exists(path) else None


def a_rank_that_is_stopped_in_a_save_is_named_and_goes_on():
    with folder() as f:
        os.mkdir(f"{f}/saved")
        launcher = training("--save", f"{f}/saved/w.safetensors", "--batch-size", "500", n=2,
                            data=part_of_data(f"{f}/data", 2000), env={"LOCKSTEP_LATE_MS": "1000"})
        saver = ranks_of(launcher, want=2)[0]
        stop_in_a_save(saver, f"{f}/saved")
        await_text(launcher, "lockstep:", " 0 (pid ", "stopped")
        before = saved_at(f"{f}/saved/w.resume.safetensors")
        os.kill(saver, signal.SIGCONT)
        while saved_at(f"{f}/saved/w.resume.safetensors") == before:
            assert launcher.poll() is None, finish(launcher, None)
            time.sleep(0.01)
        os.kill(launcher.pid, signal.SIGTERM)
        finish(launcher, None)


def a_stopped_rank_is_ended_at_the_operations_timeout():
    # Longer than a rank may wait for another one that starts beside it on a busy machine.
    launcher = training(n=2, env={"LOCKSTEP_OP_TIMEOUT_MS": "6000", "LOCKSTEP_LATE_MS": "1000"})
    ranks = trained(launcher, 2)
    job = job_of(ranks[0])
    os.kill(ranks[1], signal.SIGSTOP)
    output = finish(launcher, None, timeout=60)
    lines = [line for line in output.splitlines() if "timed out after" in line]
    assert launcher.returncode != 0, output
    assert lines and " 1 (pid " in lines[0] and "stopped" in lines[0], output
    assert_nothing_left(job)


if __name__ == "__main__":
    print("seed", SEED)
    run_tests(
        [
            a_killed_rank_ends_all_others_by_name,
            other_ranks_report_the_killed_rank,
            a_killed_launcher_leaves_nothing,
            killed_while_saving_there_is_always_a_state_to_resume_from,
            stopped_rank_is_named_and_continues_with_the_same_bits,
            a_rank_that_is_stopped_in_a_save_is_named_and_goes_on,
            a_stopped_rank_is_ended_at_the_operations_timeout,
        ]
    )
