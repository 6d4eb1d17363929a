# SPDX-License-Identifier: Apache-2.0
"""faults.py BIN-DIR: what is killed while it trains."""
import os
import random
import signal
import time

from job import (ROUNDS, SLOW, assert_nothing_left, finish, folder, job_of, launched, mnist, ranks_of, run, run_tests, start,
                 state, tensors)

SEED = random.randrange(1 << 30)
RANDOM = random.Random(SEED)
N = 3


def wait_gone(pids, within):
    end = time.monotonic() + within
    while any(state(p) not in ("", "Z") for p in pids) and time.monotonic() < end:
        time.sleep(0.005)
    return [p for p in pids if state(p) not in ("", "Z")]


def training(*flags, n=N, **options):
    return start(*launched(n, *mnist("--epochs", "1000", *flags)), **options)


def a_killed_rank_ends_all_others_by_name():
    for _ in range(ROUNDS):
        launcher = training()
        ranks = ranks_of(launcher, want=N)
        job = job_of(ranks[0])
        time.sleep(RANDOM.uniform(0.05, 2.0) * (4 if SLOW else 1))
        victim = RANDOM.randrange(N)
        os.kill(ranks[victim], signal.SIGKILL)
        left = wait_gone([p for r, p in ranks.items() if r != victim], 10 if SLOW else 2.5)
        output = finish(launcher, 137, timeout=20)
        assert not left, f"seed {SEED}: ranks {left} outlived rank {victim}\n{output}"
        assert f"rank {victim} (pid {ranks[victim]}) was killed by signal 9 (SIGKILL)" in output, output
        assert_nothing_left(job)


def the_others_say_who_died_before_they_are_ended():
    launcher = training()
    ranks = ranks_of(launcher, want=N)
    time.sleep(3 if SLOW else 1)
    os.kill(ranks[1], signal.SIGKILL)
    output = finish(launcher, 137, timeout=20)
    for rank in (0, 2):
        said = [line for line in output.splitlines() if line.startswith(f"rank {rank}| mnist:")]
        assert said and "rank 1" in said[0], output


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
        flags = ("--save", f"{f}/w.safetensors", "--batch-size", "4000")
        run(*launched(2, *mnist("--epochs", "1", *flags)))
        for _ in range(ROUNDS):
            launcher = training(*flags, "--resume", n=2)
            ranks = ranks_of(launcher, want=2)
            time.sleep(RANDOM.uniform(0.3, 3.0))
            os.kill(ranks[0], signal.SIGKILL)
            finish(launcher, 137, timeout=20)
            assert "fc.weight" in tensors(f"{f}/w.safetensors")
            assert "model.fc.weight" in tensors(f"{f}/w.resume.safetensors")
        names = ("w.safetensors", "w.best.safetensors", "w.resume.safetensors")
        allowed = {name + end for name in names for end in ("", ".tmp")}
        assert set(os.listdir(f)) <= allowed, os.listdir(f)


def a_stopped_rank_is_named_and_goes_on_with_the_same_bits():
    with folder() as f:
        undisturbed, stopped = f"{f}/a.safetensors", f"{f}/b.safetensors"
        flags = ("--steps", "150", "--schedule", "constant", "--save")
        run(*launched(2, *mnist(*flags, undisturbed)))
        launcher = start(*launched(2, *mnist(*flags, stopped)), env={"LOCKSTEP_LATE_MS": "1000"})
        ranks = ranks_of(launcher, want=2)
        time.sleep(1.5 if SLOW else 0.4)
        os.kill(ranks[1], signal.SIGSTOP)
        time.sleep(4)
        os.kill(ranks[1], signal.SIGCONT)
        output = finish(launcher)
        late = [line for line in output.splitlines() if line.startswith("lockstep:")]
        assert late and "stopped" in late[0] and "1" in late[0], output
        assert tensors(undisturbed) == tensors(stopped), "the weights differ"


def a_stopped_rank_is_ended_at_the_operations_timeout():
    launcher = training(n=2, env={"LOCKSTEP_OP_TIMEOUT_MS": "3000", "LOCKSTEP_LATE_MS": "1000"})
    ranks = ranks_of(launcher, want=2)
    job = job_of(ranks[0])
    time.sleep(3 if SLOW else 1)
    os.kill(ranks[1], signal.SIGSTOP)
    output = finish(launcher, None, timeout=30)
    assert launcher.returncode != 0 and "not arrived 1 " in output, output
    assert_nothing_left(job)


if __name__ == "__main__":
    print("seed", SEED)
    run_tests([a_killed_rank_ends_all_others_by_name, the_others_say_who_died_before_they_are_ended,
               a_killed_launcher_leaves_nothing, killed_while_saving_there_is_always_a_state_to_resume_from,
               a_stopped_rank_is_named_and_goes_on_with_the_same_bits,
               a_stopped_rank_is_ended_at_the_operations_timeout])
