# SPDX-License-Identifier: Apache-2.0
"""watch() beside gloo, which takes NCCL's place."""
import ctypes
import os
import signal
import sys
import threading
import unittest

import ranks
import torch
import torch.distributed as dist

import lockstep.torch


class Steps:
    """What the ranks of a job wait for, given by the test: files beside the store."""

    def __init__(self, store):
        self.path = store + ".step"

    def allow(self, name):
        open(self.path + name, "w").close()

    def wait(self, name):
        return ranks.wait_for(lambda: os.path.exists(self.path + name))


def late_after(milliseconds, n, body):
    """A job whose ranks are late after this time."""
    os.environ["LOCKSTEP_LATE_MS"] = str(milliseconds)
    try:
        return ranks.Job(n, body)
    finally:
        del os.environ["LOCKSTEP_LATE_MS"]


def function_of_the_late_rank(steps):
    steps.wait("late")


class Watch(unittest.TestCase):
    def end(self, job, *victims):
        results = job.wait()
        if any(job.codes[rank] != 0 for rank in range(job.n) if rank not in victims):
            job.show()
            self.fail(f"exit codes {job.codes}")
        outputs = [job.output(rank) for rank in range(job.n)]
        job.remove()
        return results, outputs

    def test_dead_rank_is_named_and_the_groups_are_aborted(self):
        has_abort = hasattr(dist.distributed_c10d, "_abort_process_group")

        def body(rank, n, store):
            ranks.join(store, rank, n, backend="gloo")
            running = lockstep.torch.watch()
            dist.barrier()
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            ranks.wait_for(lambda: running.failure and dist.is_initialized() != has_abort)
            return running.failure, dist.is_initialized()

        results, outputs = self.end(ranks.Job(3, body), 1)
        for rank in (0, 2):
            self.assertRegex(results[rank][0], "rank 1 .*is lost")
            self.assertEqual(results[rank][1], not has_abort)
            self.assertIn("lockstep.torch.watch: lockstep: rank 1", outputs[rank])

    def test_exception_of_a_rank_is_given_to_on_failure(self):
        def body(rank, n, store):
            ranks.join(store, rank, n, backend="gloo")
            texts = []
            lockstep.torch.watch(on_failure=texts.append)
            dist.barrier()
            if rank == 1:
                lockstep.torch._errors.report(KeyError("the file is empty"))
                return ""
            ranks.wait_for(lambda: texts)
            return texts[0]

        results, _ = self.end(ranks.Job(2, body))
        self.assertIn("KeyError: 'the file is empty'", results[0])

    def test_error_of_the_watch_itself_ends_it_on_all_ranks(self):
        def body(rank, n, store):
            ranks.join(store, rank, n, backend="gloo")
            texts = []
            running = lockstep.torch.watch(on_failure=texts.append)
            dist.barrier()
            if rank == 1:
                running._source.counted = lambda *_: {}["no such group"]
            ranks.wait_for(lambda: texts)
            return texts

        results, _ = self.end(ranks.Job(2, body))
        for texts in results:
            self.assertIn("KeyError: 'no such group'", texts[0])

    def test_call_of_a_thread_without_frames_has_a_name(self):
        """As in threads of autograd for devices."""
        source = lockstep.torch._watch._calls.source()
        calls = source.of("group")
        function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda _: calls.note(0))
        libc, thread = ctypes.CDLL(None), ctypes.c_ulong()
        self.assertEqual(libc.pthread_create(ctypes.byref(thread), None, function, None), 0)
        libc.pthread_join(thread, None)
        self.assertEqual(calls.state(1), (1, "a"))
        self.assertEqual(source.describe("group", 0), source.names[0])

    def test_late_rank_and_different_calls_are_named(self):
        def body(rank, n, store):
            ranks.join(store, rank, n, backend="gloo")
            steps = Steps(store)
            lockstep.torch.watch()
            dist.all_reduce(torch.ones(1))
            if rank == 0:
                work = dist.all_reduce(torch.ones(1), async_op=True)
                steps.wait("late")
            else:
                function_of_the_late_rank(steps)
                work = dist.broadcast(torch.ones(1), 0, async_op=True)
            steps.wait("different")
            return work.is_completed()

        job = late_after(1000, 2, body)
        steps = Steps(job.store)
        late = ranks.wait_for(lambda: "in function_of_the_late_rank" in job.output(0))
        steps.allow("late")
        different = ranks.wait_for(lambda: "call different operations as call 2" in job.output(0))
        ranks.wait_for(lambda: "broadcast (test_watch.py:" in job.output(0))
        text = job.output(0)
        for rank in range(2):  # which wait for each other
            job.kill(rank)
        self.end(job, 0, 1)
        self.assertTrue(late and different, text)
        self.assertRegex(text, r"rank 1: after call 1, all_?reduce \(test_watch.py:\d+\); now at ")
        self.assertRegex(text, r"rank 0: all_?reduce \(test_watch.py:\d+\)")
        self.assertRegex(text, r"rank 1: broadcast \(test_watch.py:\d+\)")

    def test_rank_that_is_late_for_ddp_is_named(self):
        def body(rank, n, store):
            ranks.join(store, rank, n, backend="gloo")
            steps = Steps(store)
            lockstep.torch.watch()
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
            for step in range(3):
                if rank == 1 and step == 2:
                    function_of_the_late_rank(steps)
                model(torch.ones(2, 4)).sum().backward()
            dist.destroy_process_group()

        job = late_after(1000, 2, body)
        late = ranks.wait_for(lambda: "in function_of_the_late_rank" in job.output(0))
        Steps(job.store).allow("late")
        _, (text, _) = self.end(job)
        self.assertTrue(late, text)
        self.assertIn("some ranks have been behind", text)

    def test_stack_with_names_of_other_letters_fits(self):
        def deep(steps, depth):
            steps.wait("late") if depth == 0 else deep(steps, depth - 1)

        name = "\U00020000" * 90  # one of these is 12 bytes of JSON
        deep.__code__ = deep.__code__.replace(co_name=name)

        def body(rank, n, store):
            ranks.join(store, rank, n, backend="gloo")
            steps = Steps(store)
            running = lockstep.torch.watch()
            dist.barrier()
            if rank == 1:
                deep(steps, 10)
            dist.barrier()
            return running.failure

        job = late_after(1000, 2, body)
        late = ranks.wait_for(lambda: "have been behind" in job.output(0) + job.output(1))
        Steps(job.store).allow("late")
        results, (text, _) = self.end(job)
        self.assertTrue(late, text)
        self.assertEqual(results, [None, None])
        self.assertIn(name[:50], text)

    def test_messages_make_no_rank_late(self):
        def body(rank, n, store):
            ranks.join(store, rank, n, backend="gloo")
            steps = Steps(store)
            running = lockstep.torch.watch()
            if rank < 2:
                for _ in range(5):
                    tensor = torch.ones(1)
                    dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)
            if rank == 0:  # after the second of these rounds a rank would be late
                judge = running._judge
                last = judge._round + 5
                assert ranks.wait_for(lambda: judge._round >= last)
                steps.allow("end")
            steps.wait("end")
            dist.barrier()

        _, outputs = self.end(late_after(500, 3, body))
        self.assertNotIn("lockstep.torch.watch", outputs[0])

    def test_groups_are_watched_and_equal_calls_are_not_reported(self):
        def body(rank, n, store):
            ranks.join(store, rank, n, backend="gloo")
            running = lockstep.torch.watch()
            pair = dist.new_group([0, 1])
            for _ in range(100):
                dist.all_reduce(torch.ones(1))
                if rank < 2:
                    dist.broadcast(torch.ones(1), 0, group=pair)
            state = running._state()["groups"]
            dist.barrier()
            return sorted(count for count, _, _ in state.values()), running.failure

        results, outputs = self.end(ranks.Job(3, body))
        self.assertEqual(results, [([100, 100], None)] * 2 + [([100], None)])
        self.assertNotIn("lockstep.torch.watch", "".join(outputs))

    def test_exchange_is_4_kib_to_rank_0_and_256_bytes_back(self):
        def body(rank, n, store):
            ranks.join(store, rank, n, backend="gloo")
            running = lockstep.torch.watch()
            group, sizes = running._group, set()
            gather, broadcast = group.gather_single, group.broadcast

            def noted_gather(output, source, opts):
                sizes.add(("to rank 0", source.numel()))
                return gather(output, source, opts)

            def noted_broadcast(tensors, opts):
                sizes.add(("to all", tensors[0].numel()))
                return broadcast(tensors, opts)

            group.gather_single, group.broadcast = noted_gather, noted_broadcast
            ranks.wait_for(lambda: len(sizes) > 1)
            dist.barrier()
            return sizes

        for sizes in ranks.run(2, body):
            self.assertEqual(sizes, {("to rank 0", 4096), ("to all", 256)})

    def test_stop_restores_the_functions_and_a_second_watch_works(self):
        def body(rank, n, store):
            ranks.join(store, rank, n, backend="gloo")
            before = dist.all_reduce
            for _ in range(2):
                running = lockstep.torch.watch()
                assert lockstep.torch.watch() is running
                dist.all_reduce(torch.ones(1))
                running.stop()
            assert dist.all_reduce is before and running.failure is None, running.failure
            dist.barrier()
            dist.destroy_process_group()
            return [thread.name for thread in threading.enumerate()]

        for names in ranks.run(3, body):
            self.assertNotIn("lockstep-watch", names)

    def test_rank_that_ends_first_is_no_failure(self):
        def body(rank, n, store):
            ranks.join(store, rank, n, backend="gloo")
            running = lockstep.torch.watch()
            dist.barrier()
            if rank == 0:
                Steps(store).wait("end")
            return running.failure

        job = ranks.Job(2, body)
        ranks.wait_for(lambda: os.path.exists(job._path("result", 1)))
        os.waitpid(job.pids[1], 0)
        job.codes[1] = 0
        Steps(job.store).allow("end")
        results, outputs = self.end(job)
        self.assertEqual((results, outputs), ([None, None], ["", ""]))

    def test_beside_lockstep_it_shares_the_connections(self):
        def body(rank, n, store):
            ranks.join(store, rank, n)
            before = len(os.listdir("/proc/self/fd"))
            lockstep.torch.watch()
            opened = len(os.listdir("/proc/self/fd")) - before
            dist.barrier()
            return opened

        for opened in ranks.run(2, body):
            self.assertLessEqual(opened, 2)


if __name__ == "__main__":
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}")
    unittest.main(verbosity=2)
