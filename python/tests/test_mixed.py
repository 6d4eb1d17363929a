# SPDX-License-Identifier: Apache-2.0
"""The C++ form beside another backend in one group. gloo takes NCCL's place for the device cuda,
of which no tensor is made."""
import os
import signal
import sys
import unittest

import ranks
import torch
import torch.distributed as dist

import lockstep.torch

MIXED = "cpu:lockstep,cuda:gloo"


def backends(group):
    return [
        type(group._get_backend(torch.device(device))).__name__ for device in ("cpu", "cuda")
    ]


class Mixed(unittest.TestCase):
    def test_operations_of_cpu_tensors(self):
        def body(rank, n, store):
            ranks.join(store, rank, n, backend=MIXED)
            tensor = torch.full((5,), rank + 1.0)
            dist.all_reduce(tensor)
            parts = [torch.zeros(2) for _ in range(n)]
            dist.all_gather(parts, torch.full((2,), float(rank)))
            objects = [None] * n
            dist.all_gather_object(objects, {"rank": rank})
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
            model(torch.ones(1, 3)).sum().backward()
            kinds = backends(dist.group.WORLD)
            dist.barrier()
            dist.destroy_process_group()
            return tensor.tolist(), [part[0].item() for part in parts], objects, kinds

        for total, parts, objects, kinds in ranks.run(2, body):
            self.assertEqual((total, parts), ([3.0] * 5, [0.0, 1.0]))
            self.assertEqual(objects, [{"rank": 0}, {"rank": 1}])
            self.assertEqual(kinds[1], "ProcessGroupGloo")
            self.assertNotEqual(kinds[0], "ProcessGroupGloo")

    def test_groups_of_some_ranks(self):
        def body(rank, n, store):
            ranks.join(store, rank, n, backend=MIXED)
            pair = dist.new_group([0, 2])  # mixed as well
            other = dist.new_group([0, 2], backend="lockstep")
            results = []
            for group in (pair, other) if rank != 1 else ():
                tensor = torch.full((5,), rank + 1.0)
                dist.all_reduce(tensor, group=group)
                results.append(tensor[0].item())
            kinds = backends(pair) if rank != 1 else None
            dist.barrier()
            dist.destroy_process_group()
            return results, kinds

        results = ranks.run(3, body)
        self.assertEqual(results[1], ([], None))
        for rank in (0, 2):
            self.assertEqual(results[rank][0], [4.0, 4.0])
            self.assertEqual(results[rank][1][1], "ProcessGroupGloo")

    def test_lost_rank_is_named(self):
        def body(rank, n, store):
            ranks.join(store, rank, n, backend=MIXED)
            running = lockstep.torch.watch()
            dist.barrier()
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            ranks.wait_for(lambda: not dist.is_initialized())
            return running.failure

        job = ranks.Job(3, body)
        results = job.wait()
        job.remove()
        for rank in (0, 2):
            self.assertRegex(str(results[rank]), "rank 1 .*is lost")

    def test_memory_for_tensors_outlives_the_group(self):
        def body(rank, n, store):
            ranks.join(store, rank, n)
            backend = dist.group.WORLD._get_backend(torch.device("cpu"))
            memory = backend.allocate_tensor(
                1 << 16, dtype=torch.float32, device=torch.device("cpu")
            )
            memory.fill_(rank + 1.0)
            dist.all_reduce(memory)
            dist.destroy_process_group()
            del backend
            memory.add_(1.0)
            open_groups = len(list(lockstep.torch._join.live_comms()))
            return memory[0].item(), memory[-1].item(), open_groups

        self.assertEqual(ranks.run(2, body), [(4.0, 4.0, 0)] * 2)


if __name__ == "__main__":
    form, reason = lockstep.torch.form()
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}, form {form}")
    if form != "cpp":
        print("mixed groups need the C++ form:", reason)
        sys.exit(77)
    unittest.main(verbosity=2)
