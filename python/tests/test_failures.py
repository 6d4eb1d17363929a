# SPDX-License-Identifier: Apache-2.0
"""What the other ranks get when a rank dies, fails, or calls something else."""
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
import unittest
import warnings
from datetime import timedelta

import ranks
import torch
import torch.distributed as dist

import lockstep.torch  # noqa: F401

NAMED_S = 5  # generous: 1 s, and a busy machine


def error_of(call):
    try:
        call()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("no error")


def pass_barrier(store, rank, n):
    """Returns when every rank has left the barrier. A rank that ends, or aborts its group, would
    otherwise fail the barrier of a slower rank."""
    dist.barrier()
    open(f"{store}_{rank}", "wb").close()
    assert ranks.wait_for(lambda: all(os.path.exists(f"{store}_{r}") for r in range(n)))


def ends_of(program):
    """Exit codes and errors of two interpreters, which get their rank and the path of a store."""
    job = ranks.Job(0, None)
    words = [[sys.executable, "-c", program, str(rank), job.store] for rank in range(2)]
    options = {"stderr": subprocess.PIPE, "text": True, "preexec_fn": ranks.end_with_parent}
    processes = [subprocess.Popen(w, **options) for w in words]
    errors = [process.communicate(timeout=ranks.DEADLINE_S)[1] for process in processes]
    job.remove()
    return [(process.returncode, error) for process, error in zip(processes, errors)]


IN_PROCESSES = """
import multiprocessing, os, sys, time, torch, torch.distributed as dist, lockstep.torch

def be_a_rank(rank, how, path):
    dist.init_process_group("lockstep", store=dist.FileStore(path, 2), rank=rank, world_size=2)
    dist.barrier()
    if how == "raise" and rank == 1:
        raise KeyError("the file is empty")
    if how == "raise":
        dist.all_reduce(torch.ones(1))
    elif rank == 0:
        dist.send(torch.ones(1), 1)
    else:
        while not os.path.exists(path + "_ended"):
            time.sleep(0.01)
        dist.recv(torch.ones(1), 0)

if __name__ == "__main__":
    method, how, path = sys.argv[1:]
    process = multiprocessing.get_context(method).Process
    first, second = (process(target=be_a_rank, args=(rank, how, path)) for rank in range(2))
    first.start(), second.start()
    first.join()
    open(path + "_ended", "w").close()
    second.join()
    print(first.exitcode, second.exitcode, file=sys.stderr)
"""


class Failures(unittest.TestCase):
    def survivors(self, job, victim):
        results = job.wait()
        for rank in range(job.n):
            if rank != victim and job.codes[rank] != 0:
                job.show()
                self.fail(f"rank {rank} failed: {job.codes}")
        job.remove()
        return [result for rank, result in enumerate(results) if rank != victim]

    def test_killed_rank_is_named(self):
        def body(rank, n, store):
            ranks.join(store, rank, n)
            pass_barrier(store, rank, n)
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            start = time.monotonic()
            return error_of(lambda: dist.all_reduce(torch.ones(5))), time.monotonic() - start

        for text, seconds in self.survivors(ranks.Job(3, body), 1):
            self.assertRegex(text, "rank 1")
            self.assertLess(seconds, NAMED_S)

    def test_future_of_a_group_that_loses_a_rank_raises(self):
        def body(rank, n, store):
            ranks.join(store, rank, n)
            pass_barrier(store, rank, n)
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            future = dist.all_reduce(torch.ones(5), async_op=True).get_future()
            return error_of(future.wait)

        for text in self.survivors(ranks.Job(3, body), 1):
            self.assertIn("rank 1", text)

    def test_ddp_ends_with_an_error_when_a_rank_dies(self):
        def body(rank, n, store):
            ranks.join(store, rank, n)
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
            for step in range(1000):
                if rank == 1 and step == 3:
                    os.kill(os.getpid(), signal.SIGKILL)
                try:
                    model(torch.ones(2, 4)).sum().backward()
                except RuntimeError as error:
                    return str(error)
            return "no error"

        for text in self.survivors(ranks.Job(2, body), 1):
            self.assertIn("rank 1", text)

    def test_different_collectives_name_both_sides(self):
        def body(rank, n, store):
            ranks.join(store, rank, n)
            if rank == 0:
                return error_of(lambda: dist.all_reduce(torch.ones(5)))
            return error_of(lambda: dist.broadcast(torch.ones(7), 0))

        for text in ranks.run(2, body):
            self.assertIn("all_reduce", text)
            self.assertIn("broadcast", text)
            self.assertRegex(text, r"test_failures.py:\d+ \[5\]")
            self.assertRegex(text, r"test_failures.py:\d+ \[7\]")

    def test_late_rank_is_named_with_its_stack(self):
        os.environ["LOCKSTEP_LATE_MS"] = "300"

        def late_function(job_store):
            ranks.wait_for(lambda: os.path.exists(job_store + ".seen"))

        def body(rank, n, store):
            ranks.join(store, rank, n)
            if rank == 1:
                late_function(store)
            dist.all_reduce(torch.ones(5))

        try:
            job = ranks.Job(2, body)
        finally:
            del os.environ["LOCKSTEP_LATE_MS"]
        ranks.wait_for(lambda: "late_function" in job.output(0) + job.output(1))
        open(job.store + ".seen", "w").close()
        job.wait()
        text = job.output(0) + job.output(1)
        job.remove()
        self.assertRegex(text, r"test_failures.py:\d+ in late_function")

    def test_exception_of_a_rank_reaches_the_others(self):
        program = textwrap.dedent(
            """
            import sys, torch, torch.distributed as dist, lockstep.torch
            rank = int(sys.argv[1])
            dist.init_process_group("lockstep", store=dist.FileStore(sys.argv[2], 2), rank=rank,
                                    world_size=2)
            dist.barrier()
            if rank == 1:
                raise KeyError("the file is empty")
            dist.all_reduce(torch.ones(1))
            """
        )
        (code, error), _ = ends_of(program)
        self.assertIn("KeyError: 'the file is empty'", error)
        self.assertIn("rank 1", error)
        self.assertNotEqual(code, 0)

    def test_processes_of_multiprocessing_leave_their_groups(self):
        for method in ("fork", "spawn"):
            for how, end in (("raise", "rank 1 aborted.*KeyError: 'the file is"), ("end", "^0 0$")):
                job = ranks.Job(0, None)
                program = os.path.join(job.folder, "program.py")
                with open(program, "w") as file:
                    file.write(IN_PROCESSES)
                done = subprocess.run(
                    [sys.executable, program, method, how, job.store],
                    stderr=subprocess.PIPE,
                    text=True,
                    timeout=ranks.DEADLINE_S,
                )
                job.remove()
                self.assertRegex(done.stderr, "(?m)" + end, (method, how))

    def test_interpreter_ends_cleanly_without_destroy(self):
        program = textwrap.dedent(
            """
            import sys, torch, torch.distributed as dist, lockstep.torch
            rank = int(sys.argv[1])
            dist.init_process_group("lockstep", store=dist.FileStore(sys.argv[2], 2), rank=rank,
                                    world_size=2)
            work = dist.all_reduce(torch.ones(1), async_op=True)
            work.get_future().then(lambda future: None)
            dist.barrier()
            left = dist.irecv(torch.ones(1), 1 - rank)
            left.get_future().then(lambda future: None)
            """
        )
        for code, text in ends_of(program):
            self.assertEqual((code, "Fatal" in text), (0, False), text)

    def test_program_ends_while_a_daemon_thread_waits(self):
        program = textwrap.dedent(
            """
            import sys, threading, time, torch, torch.distributed as dist, lockstep.torch
            rank = int(sys.argv[1])
            dist.init_process_group("lockstep", store=dist.FileStore(sys.argv[2], 2), rank=rank,
                                    world_size=2)
            data = torch.ones(1)
            def wait():
                while True:
                    try:
                        dist.recv(data, 1 - rank)
                    except Exception:
                        pass
            thread = threading.Thread(target=wait, daemon=True)
            thread.start()
            dist.barrier()
            def waits():
                code = sys._current_frames()[thread.ident].f_code
                return code.co_name in ("recv", "_wait_for_end")
            n = 0
            end = time.monotonic() + 60  # the wait fails at once where the other rank was killed
            while n < 100 and time.monotonic() < end:  # in a row: it is in the wait
                n = n + 1 if waits() else 0
                time.sleep(0.01)
            """
        )
        for code, text in ends_of(program):
            self.assertEqual((code, "Fatal" in text), (0, False), text)

    def test_abort_leaves_the_group_to_a_thread_that_waits(self):
        def body(rank, n, store):
            ranks.join(store, rank, n)
            group = dist.distributed_c10d._get_default_group()
            backend = group._get_backend(torch.device("cpu"))
            texts = []
            waits = threading.Event()

            def receive():
                waits.set()
                texts.append(error_of(lambda: dist.recv(torch.ones(1), 1 - rank)))
                texts.append(error_of(lambda: dist.all_reduce(torch.ones(1))))

            thread = threading.Thread(target=receive)
            thread.start()
            waits.wait()
            pass_barrier(store, rank, n)
            if rank == 0:
                backend.abort()
            thread.join()
            return texts

        for texts in ranks.run(2, body):
            self.assertEqual(len(texts), 2)
            for text in texts:
                self.assertRegex(text, "rank 0 aborted: the .*(group was aborted|process group)")

    def test_abort_calls_the_callbacks_of_what_is_pending(self):
        def body(rank, n, store):
            ranks.join(store, rank, n)
            group = dist.distributed_c10d._get_default_group()
            backend = group._get_backend(torch.device("cpu"))
            ended = [threading.Event() for _ in range(20)]
            for tag, event in enumerate(ended):
                future = dist.irecv(torch.ones(1), 1 - rank, tag=tag).get_future()
                future.then(lambda _, event=event: event.set())
            pass_barrier(store, rank, n)
            time.sleep(0.3)  # until the progress thread sleeps
            if rank == 0:
                backend.abort()
            return all(event.wait(ranks.DEADLINE_S) for event in ended)

        self.assertEqual(ranks.run(2, body), [True, True])

    def test_callback_destroys_its_group(self):
        def body(rank, n, store):
            ranks.join(store, rank, n)
            given = store + "_given"
            if rank == 1:
                ranks.wait_for(lambda: os.path.exists(given))
            future = dist.all_reduce(torch.ones(1), async_op=True).get_future()
            ended = future.then(lambda _: dist.destroy_process_group())
            if rank == 0:  # the library's thread calls it
                open(given, "w").close()
            ended.wait()
            ranks.join(store + "_again", rank, n)
            dist.barrier()

        ranks.run(2, body)

    def test_target_that_changes_its_shape_is_an_error(self):
        def body(rank, n, store):
            ranks.join(store, rank, n)
            changed = store + "_changed"
            if rank == 1:
                ranks.wait_for(lambda: os.path.exists(changed))
                dist.all_reduce(torch.ones(4))
                dist.all_reduce(torch.ones(4))
                return []
            targets = [torch.ones(4, 2)[:, 0] for _ in range(2)]
            first, second = (dist.all_reduce(target, async_op=True) for target in targets)
            future = second.get_future()
            for target in targets:
                target.resize_(3)
            open(changed, "w").close()
            return [error_of(wait) for wait in (first.wait, first.wait, future.wait)]

        texts, _ = ranks.run(2, body)
        self.assertEqual(len(texts), 3)
        for text in texts:
            self.assertIn("The size of tensor a (3) must match", text)

    def test_other_threads_run_while_a_call_waits(self):
        def body(rank, n, store):
            def go_on(name):
                return f"{store}_{name}"

            def waits(name, wait):
                """Rank 1 starts its part when another thread of this rank has run meanwhile."""

                def run():
                    time.sleep(0.3)  # until wait() waits
                    open(go_on(name), "w").close()

                threading.Thread(target=run).start()
                return wait()

            ranks.join(store, rank, n)
            if rank == 1:
                ran = []
                for name in ("begin", "future", "synchronize"):
                    ran.append(ranks.wait_for(lambda: os.path.exists(go_on(name))))  # noqa: B023
                    dist.all_reduce(torch.ones(1))
                return ran

            def start():
                return dist.all_reduce(torch.ones(1), async_op=True)

            future = start().get_future()
            ended = future.then(lambda _: waits("future", start().get_future))
            open(go_on("begin"), "w").close()
            ended.wait()
            waits("synchronize", start().synchronize)
            return []

        self.assertEqual(ranks.run(2, body)[1], [True] * 3)

    def test_longest_timeouts_do_not_end_at_once(self):
        def body(rank, n, store):
            ranks.join(store, rank, n, timeout=timedelta.max)
            if rank == 1:
                time.sleep(0.3)
            dist.all_reduce(torch.ones(1))
            work = dist.all_reduce(torch.ones(1), async_op=True)
            return work.wait(timedelta.max)

        self.assertEqual(ranks.run(2, body), [True, True])

    def test_interrupt_ends_a_wait(self):
        def body(rank, n, store):
            ranks.join(store, rank, n)
            pass_barrier(store, rank, n)
            if rank == 1:
                return error_of(lambda: dist.recv(torch.ones(1), 0))
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            try:
                dist.all_reduce(torch.ones(1))
            except KeyboardInterrupt as error:
                lockstep_errors = sys.modules["lockstep.torch._errors"]
                lockstep_errors.report(error)
                return "KeyboardInterrupt"
            return "not interrupted"

        first, second = ranks.run(2, body)
        self.assertEqual(first, "KeyboardInterrupt")
        self.assertIn("KeyboardInterrupt", second)

    def test_exception_of_a_signal_handler_ends_a_wait_unchanged(self):
        raised = [
            SystemExit(7),
            OSError(28, "No space left on device", "results.pt"),
            UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        ]

        def in_handler(error):
            def handler(*_):
                raise error

            signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, 0.3)

        def what_ends(wait, error):
            in_handler(error)
            try:
                wait()
            except BaseException as got:
                names = [f.name for f in traceback.extract_tb(got.__traceback__)]
                return got is error, "handler" in names, got.__context__ is None
            return "nothing"

        def body(rank, n, store):
            ranks.join(store, rank, n)
            found, tensor = [], torch.ones(1)
            if rank == 0:
                for error in raised:
                    work = dist.irecv(torch.ones(1), 1)
                    found.append(what_ends(work.wait, error))
                work = dist.irecv(torch.ones(1), 1)
                if lockstep.torch.form()[0] == "cpp":  # Future.wait(), which Python calls, has none
                    work.get_future().then(lambda future: None)
                found.append(what_ends(work.wait, raised[2]))
                found.append(what_ends(lambda: dist.all_reduce(tensor), raised[0]))
                found.append(what_ends(dist.group.WORLD.monitored_barrier, raised[0]))
                open(store + "_ended", "wb").close()
                dist.barrier()
            else:
                self.assertTrue(ranks.wait_for(lambda: os.path.exists(store + "_ended")))
                for _ in range(4):
                    dist.send(torch.ones(1), 0)
                dist.all_reduce(tensor)
                dist.barrier()
            return found, tensor.item()

        (found, first), (_, second) = ranks.run(2, body)
        self.assertEqual(found, [(True, True, True)] * 6)
        self.assertEqual((first, second), (2.0, 2.0))  # the operation went on

    def test_exit_of_a_signal_handler_ends_joining(self):
        def body(rank, _n, store):
            error = SystemExit(7)

            def handler(*_):
                raise error

            signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            try:
                ranks.join(store, rank, 2)
            except SystemExit as got:
                return got is error

        self.assertEqual(ranks.run(1, body), [True])

    def test_exit_of_a_signal_handler_is_the_exit_of_the_rank(self):
        program = textwrap.dedent(
            """
            import signal, sys, torch, torch.distributed as dist, lockstep.torch
            rank = int(sys.argv[1])
            dist.init_process_group("lockstep", store=dist.FileStore(sys.argv[2], 2), rank=rank,
                                    world_size=2)
            dist.barrier()
            if rank == 1:
                signal.signal(signal.SIGALRM, lambda *_: sys.exit(7))
                signal.setitimer(signal.ITIMER_REAL, 0.3)
            dist.recv(torch.ones(1), 1 - rank)
            """
        )
        (other, text), (code, _) = ends_of(program)
        self.assertEqual(code, 7)
        self.assertNotEqual(other, 0)
        self.assertIn("rank 1", text)

    def test_interrupt_before_an_operation_starts(self):
        """The next operation progresses although this rank calls nothing, as before."""

        def body(rank, n, store):
            def interrupt(*_):
                raise KeyboardInterrupt

            ranks.join(store, rank, n)
            tensor = torch.full((1 << 20,), float(rank))
            if rank == 0:
                library = lockstep.torch.lib
                started, library.ls_all_reduce = library.ls_all_reduce, interrupt
                self.assertRaises(KeyboardInterrupt, dist.all_reduce, tensor)
                library.ls_all_reduce = started
            work = dist.all_reduce(tensor, async_op=True)
            if rank == 1:
                work.wait()
                open(store + "_ended", "wb").close()
            ended = ranks.wait_for(lambda: os.path.exists(store + "_ended"))
            work.wait()
            return ended, bool((tensor == 1).all())

        if lockstep.torch.form()[0] == "cpp":
            self.skipTest("nothing interrupts the start in C++")
        self.assertEqual(ranks.run(2, body), [(True, True)] * 2)

    def test_forked_child_is_refused(self):
        def body(rank, n, store):
            ranks.join(store, rank, n)
            work = dist.irecv(torch.ones(1), 1 - rank)
            pid = os.fork()
            if pid == 0:
                ranks.end_with_parent()
                text = error_of(lambda: dist.all_reduce(torch.ones(1)))
                lockstep.torch._work._unwaited.clear()
                del work
                os._exit(0 if "fork" in text else 1)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            dist.barrier()
            return code

        self.assertEqual(ranks.run(2, body), [0, 0])

    def test_pending_handle_that_is_dropped_is_named(self):
        def body(rank, n, store):
            ranks.join(store, rank, n)
            lockstep.torch._work._UNWAITED_MAX = 2
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                for _ in range(3):
                    dist.irecv(torch.ones(1), 1 - rank)
            dist.barrier()
            return [str(warning.message) for warning in found]

        if lockstep.torch.form()[0] == "cpp":
            self.skipTest("C++ keeps its handles")
        for texts in ranks.run(2, body):
            self.assertEqual(len(texts), 1, texts)
            self.assertIn("more than 2 operations are pending", texts[0])

    def test_timeout_of_an_operation(self):
        def body(rank, n, store):
            ranks.join(store, rank, n, timeout=timedelta(seconds=60))
            if rank == 1:
                dist.recv(torch.ones(1), 0)
                return ""
            work = dist.irecv(torch.ones(1), 1)
            text = error_of(lambda: work.wait(timedelta(milliseconds=100)))
            return text

        job = ranks.Job(2, body)
        results = job.wait()
        self.assertRegex(results[0], " (Timed out|closed|timeout) ")
        self.assertRegex(results[0], r"timed out after .*; not arrived 1 \(pid ")
        self.assertIn("Timed out", job.output(1))
        job.remove()

    def test_timeout_of_an_operation_with_a_future(self):
        def body(rank, n, store):
            ranks.join(store, rank, n, timeout=timedelta(seconds=60))
            if rank == 1:
                return error_of(lambda: dist.recv(torch.ones(1), 0))
            work = dist.all_reduce(torch.ones(1), async_op=True)
            future = work.get_future()
            text = error_of(lambda: work.wait(timedelta(milliseconds=100)))
            return text + error_of(future.wait)

        text = ranks.run(2, body)[0]
        self.assertRegex(text, r"(Timed out .*not arrived 1 \(pid .*){2}")

    def test_longer_wait_keeps_the_timeout_of_the_operation(self):
        def body(rank, n, store):
            ranks.join(store, rank, n, timeout=timedelta(seconds=60))
            if rank == 1:
                return error_of(lambda: dist.recv(torch.ones(1), 0))
            options = dist.AllreduceOptions()
            options.timeout = timedelta(milliseconds=300)
            work = dist.distributed_c10d._get_default_group().allreduce([torch.ones(1)], options)
            return error_of(lambda: work.wait(timedelta(hours=1)))

        self.assertRegex(ranks.run(2, body)[0], r"timed out after 0\.\d s .* not arrived 1")

    def test_end_of_a_group_frees_the_store(self):
        def body(rank, n, store):
            gc.disable()
            ranks.join(store, rank, n)
            dist.barrier()
            dist.destroy_process_group()
            join = sys.modules["lockstep.torch._join"]
            return sum(isinstance(one, join._Store) for one in gc.get_objects())

        self.assertEqual(ranks.run(2, body), [0, 0])

    def test_timeout_of_gloo_that_is_replaced(self):
        def body(rank, n, store):
            lockstep.torch._replace_gloo()
            ranks.join(store, rank, n, "gloo")
            if rank == 1:
                return error_of(lambda: dist.recv(torch.ones(1), 0))
            group = dist.distributed_c10d._get_default_group()
            group._get_backend(torch.device("cpu"))._set_default_timeout(timedelta(seconds=0.2))
            return error_of(lambda: dist.all_reduce(torch.ones(1)))

        self.assertRegex(ranks.run(2, body)[0], r"timed out after 0\.\d s .* not arrived 1")

    def test_key_of_the_store_authenticates_the_ranks(self):
        def body(rank, n, store):
            os.environ["LOCKSTEP_TORCH_KEY"] = "store"
            join = sys.modules["lockstep.torch._join"]
            key = join._key
            if rank == 1 and store.endswith("wrong"):
                join._key = lambda *arguments: bytes(reversed(key(*arguments)))
            try:
                ranks.join(store, rank, n, timeout=timedelta(seconds=60))
                dist.barrier()
            except RuntimeError as error:
                return str(error)
            return "joined"

        self.assertEqual(ranks.run(2, body), ["joined", "joined"])
        for text in ranks.run(2, lambda rank, n, store: body(rank, n, store + "wrong")):
            self.assertIn("key", text)

    def test_timeout_of_one_call(self):
        def body(rank, n, store):
            ranks.join(store, rank, n, timeout=timedelta(seconds=60))
            group = dist.distributed_c10d._get_default_group()
            options = dist.AllreduceOptions()
            options.timeout = timedelta(seconds=50)
            group.allreduce([torch.ones(1)], options).wait()
            if rank == 1:
                return error_of(lambda: dist.recv(torch.ones(1), 0))
            options.timeout = timedelta(milliseconds=100)
            return error_of(lambda: group.allreduce([torch.ones(1)], options).wait())

        first, second = ranks.run(2, body)
        self.assertRegex(first, " (Timed out|closed|timeout) ")
        self.assertIn("imed out", second)

    def test_monitored_barrier_names_late_ranks(self):
        def body(rank, n, store):
            ranks.join(store, rank, n)
            group = dist.distributed_c10d._get_default_group()
            group.monitored_barrier(timedelta(seconds=60))
            text = ""
            if rank != 1:
                limit = timedelta(milliseconds=300)
                text = error_of(lambda: group.monitored_barrier(limit))
            dist.barrier()  # the group is still usable
            if rank != 1:
                return text
            return error_of(lambda: group.monitored_barrier(timedelta(milliseconds=300)))

        first, late, third = ranks.run(3, body)
        self.assertIn("Rank 1 failed to pass monitoredBarrier", first)
        self.assertIn("Rank 2 successfully reached monitoredBarrier", third)
        self.assertIn("Rank 1 successfully reached monitoredBarrier", late)


LAUNCHED = """
import os, signal, sys
import torch, torch.distributed as dist
import lockstep.torch
dist.init_process_group("lockstep")
dist.barrier()
if dist.get_rank() == int(sys.argv[2]):
    how = sys.argv[1]
    if how == "raise":
        raise KeyError("lost")
    if how == "exit":
        sys.exit(7)
    if how == "leave":
        dist.destroy_process_group()
        sys.exit(5)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    dist.broadcast(torch.ones(7), 0)
for _ in range(2):
    dist.all_reduce(torch.ones(5))
"""


@unittest.skipIf(torch.__version__ < "2", "a newer torch")
class UnderTheLauncher(unittest.TestCase):
    """`lockstep run` names the rank that is the cause, although rank 0 hosts the hub of the group
    and another rank may end first."""

    def report(self, how, victim):
        command = [os.environ["LS_TEST_TOOL"], "run", "-n", "2", sys.executable, "-c", LAUNCHED]
        done = subprocess.run(
            [*command, how, str(victim)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=ranks.DEADLINE_S,
        )
        lines = [line for line in done.stderr.split("\n") if line.startswith("lockstep: rank")]
        self.assertEqual(len(lines), 1, done.stderr)
        return done.returncode, lines[0]

    def test_report_names_the_rank_that_failed_first(self):
        ends = {
            "raise": (1, "lockstep: rank {} aborted: KeyError: 'lost'"),
            "exit": (7, r"lockstep: rank {} \(pid \d+\) exited with code 7"),
            "leave": (5, r"lockstep: rank {} \(pid \d+\) exited with code 5"),
            "kill": (137, r"lockstep: rank {} \(pid \d+\) was killed by signal 9"),
            "mismatch": (1, r"lockstep: ranks? .*broadcast.*all_reduce|all_reduce.*broadcast"),
        }
        # A rank that has left is ended after 2.5 s, on a busy machine before it exits by itself.
        ended = (1, r"lockstep: rank {}(?: \(pid \d+\))? left the job after operation #\d+")
        for how, (code, text) in ends.items():
            for victim in range(2):
                for _ in range(int(os.environ.get("LS_TEST_ROUNDS", "2"))):
                    with self.subTest(how=how, victim=victim):
                        got, line = self.report(how, victim)
                        was_ended = how == "leave" and got == ended[0]
                        wanted, words = ended if was_ended else (code, text)
                        self.assertRegex(line, words.format(victim))
                        self.assertEqual(got, wanted, line)


if __name__ == "__main__":
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}")
    unittest.main(verbosity=2)
