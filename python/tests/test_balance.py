# SPDX-License-Identifier: Apache-2.0
"""BalancedSampler: partitions by speed, samples and gradients with unequal batches."""
import unittest

import ranks
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

from lockstep.torch import BalancedSampler
from lockstep.torch._balance_plan import AGREE, Planner, Times, divide


class Plan(unittest.TestCase):
    def test_times_drop_the_shortest_and_longest_third(self):
        times = Times()
        self.assertEqual(times.middle(), 0)
        times.add(4.0)
        self.assertEqual(times.middle(), 0)  # one alone may be longer by chance
        for _ in range(8):
            times.add(1.0)
        times.add(1000.0)
        self.assertEqual(times.middle(), 1.0)

    def test_rows_follow_speed(self):
        self.assertEqual(divide(48, [1, 2]), [32, 16])
        self.assertEqual(divide(48, [1, 1, 1]), [16, 16, 16])
        self.assertEqual(divide(10, [1, 3]), [8, 2])
        self.assertEqual(divide(64, [1, 1e6]), [62, 2])
        self.assertEqual(divide(7, [1, 1e6, 1e6]), [3, 2, 2])

    def test_no_rank_gets_a_single_row_of_a_short_step(self):
        for rows in range(2, 20):
            counts = divide(rows, [1.0, 5.0, 0.3, 1.0])
            self.assertEqual(sum(counts), rows)
            self.assertNotIn(1, counts)
        self.assertEqual(divide(1, [1, 1]), [1, 0])

    def test_a_persistent_difference_changes_the_partition_once(self):
        plan = Planner(48, [1, 1])
        changes = [plan.compare([1, 1.2]) for _ in range(20)]
        self.assertEqual([i for i, c in enumerate(changes) if c], [AGREE - 1])
        self.assertEqual(plan.counts, [26, 22])

    def test_a_large_difference_changes_it_at_once(self):
        plan = Planner(48, [1, 1])
        self.assertTrue(plan.compare([1, 2]))
        self.assertEqual(plan.counts, [32, 16])

    def test_small_and_short_differences_change_nothing(self):
        plan = Planner(48, [1, 1])
        for i in range(100):
            self.assertFalse(plan.compare([1, 1.02 + 0.18 * (i % AGREE == 0)]))
            self.assertFalse(plan.compare([1, 0]))

    def test_returns_become_rare(self):
        plan = Planner(48, [1, 1])
        speeds = [[1, 1.2], [1.2, 1]]
        n_changes = 0
        for i in range(96):
            n_changes += plan.compare(speeds[i // AGREE % 2])
        self.assertLess(n_changes, 4)


def network():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double()


def samples(n):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(n, 6, generator=generator, dtype=torch.float64)
    return TensorDataset(x, torch.arange(n))


def whole_batches(n, rows):
    """The gradients of each step, and the parameters at the end, of one process."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(5 + 2))
    gradients = []
    for first in range(0, n, rows):
        x = samples(n).tensors[0][order[first : first + rows]]
        optimizer.zero_grad()
        model(x).square().mean().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
        optimizer.step()
    return gradients, [p.detach() for p in model.parameters()]


def run_two_to_one(backend, n, rows):
    def body(rank, size, store):
        ranks.join(store, rank, size, backend)
        model = DDP(network(), bucket_cap_mb=0.0005)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        batches = BalancedSampler(samples(n), rows, seed=5, speeds=[2, 1])
        batches.attach(model)
        batches.set_epoch(2)
        loader = DataLoader(samples(n), batch_sampler=batches)
        gradients, used = [], []
        for x, index in batches.steps(loader):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            if batches._factor == 0:
                loss = loss * float("nan")  # of a sample that does not count
            loss.backward()
            gradients.append([p.grad.clone() for p in model.parameters()])
            optimizer.step()
            used.append(len(index) * (batches._factor > 0))
        return gradients, [p.detach() for p in model.parameters()], used

    return ranks.run(2, body)


class FakeClock:
    """Adds so many seconds for each sample of a batch."""

    def __init__(self):
        self.now, self.seconds = 1.0, 1.0

    def __call__(self):
        return self.now

    def collate(self, items):
        self.now += self.seconds * len(items)
        return torch.tensor([i for _, i in items])


def run_measured(backend, seconds_of, workers=0, n_epochs=3):
    """Trains, and returns the partitions; seconds_of(step, rank): of a sample."""
    n, rows = 50 * 24 + 7, 24

    def body(rank, size, store):
        ranks.join(store, rank, size, backend)
        model = DDP(nn.Linear(1, 1))
        clock = FakeClock()
        batches = BalancedSampler(samples(n), rows)
        batches._clock = clock
        batches.attach(model)
        collate = (lambda items: torch.tensor([i for _, i in items])) if workers else clock.collate
        loader = DataLoader(
            samples(n), batch_sampler=batches, num_workers=workers, collate_fn=collate
        )
        used, partitions, step = [], [], 0
        for epoch in range(n_epochs):
            batches.set_epoch(epoch)
            used.append([])
            clock.seconds = seconds_of(0, rank)
            for index in batches.steps(loader):
                step += 1
                if workers:
                    clock.now += clock.seconds * len(index)
                model(torch.ones(len(index), 1)).mean().backward()
                clock.seconds = seconds_of(step, rank)
                used[-1] += index.tolist() if batches._factor > 0 else []
                partitions.append(batches.counts)
        return used, partitions

    results = ranks.run(2, body)
    for epoch in range(n_epochs):
        indices = sorted(i for used, _ in results for i in used[epoch])
        assert indices == list(range(n)), f"epoch {epoch}: not each sample once"
    assert results[0][1] == results[1][1], "the ranks have different partitions"
    return results[0][1]


class Training:
    backend = "lockstep"

    def test_gradients_at_two_to_one_are_those_of_the_whole_batch(self):
        for n in (7 * 24, 7 * 24 + 1):  # with 1, rank 1 has no sample of the last step
            gradients, parameters = whole_batches(n, 24)
            for rank, got in enumerate(run_two_to_one(self.backend, n, 24)):
                torch.testing.assert_close(got[0], gradients, rtol=1e-12, atol=1e-14)
                torch.testing.assert_close(got[1], parameters, rtol=1e-12, atol=1e-14)
                self.assertEqual(got[2][:7], [(16, 8)[rank]] * 7)
                self.assertEqual(got[2][7:], [(1, 0)[rank]] * (n % 24))

    def test_a_slower_rank_gets_fewer_samples_within_20_steps(self):
        partitions = run_measured(self.backend, lambda step, rank: 1 + (rank == 1 and step >= 30))
        self.assertEqual(partitions[29], [12, 12])
        self.assertEqual(partitions[50], [16, 8])
        self.assertEqual(partitions[-1], [16, 8])

    def test_one_long_step_changes_nothing(self):
        partitions = run_measured(self.backend, lambda step, rank: 1 + 500 * (rank == step == 1))
        self.assertEqual(partitions, [[12, 12]] * len(partitions))

    def test_batches_that_workers_read_ahead_keep_their_partition(self):
        partitions = run_measured(self.backend, lambda step, rank: 1 + 3 * rank, workers=2)
        self.assertEqual(partitions[-1], [20, 4])

    def test_a_body_without_reduction_is_refused(self):
        def body(rank, size, store):
            ranks.join(store, rank, size, self.backend)
            model = DDP(network())
            batches = BalancedSampler(samples(64), 16, speeds=[1, 1])
            loader = DataLoader(samples(64), batch_sampler=batches)
            texts = []
            for action in (
                lambda: list(batches.steps(loader)),
                lambda: batches.attach(model) or list(batches.steps(loader)),
                lambda: list(loader),
                lambda: list(batches.steps(DataLoader(samples(64)))),
                lambda: BalancedSampler(samples(64), 1),
                lambda: BalancedSampler(samples(64), 65, drop_last=True),
                lambda: BalancedSampler(iter(()), 8),
                lambda: BalancedSampler(samples(64), 8, speeds=[1]),
                lambda: BalancedSampler(samples(64), 8, speeds=[1, float("nan")]),
            ):
                try:
                    action()
                    texts.append("nothing was raised")
                except (RuntimeError, TypeError, ValueError) as error:
                    texts.append(str(error))
            return texts

        expected = [
            "attach(model) comes before steps()",
            "no gradients were reduced for a batch",
            "the loop is over steps(loader)",
            "a DataLoader with it as batch_sampler",
            "rows=1: a step has a sample or more for each rank",
            "64 samples are no step of rows=65",
            "has no numbered samples",
            "1 speeds for 2 ranks",
            "they are numbers from 1e-6 to 1e6",
        ]
        for texts in ranks.run(2, body):
            for text, part in zip(texts, expected):
                self.assertIn(part, text)

    def test_another_hook_reduces_the_weighted_gradients(self):
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        def body(rank, size, store):
            ranks.join(store, rank, size, self.backend)
            model = DDP(nn.Linear(1, 1, bias=False))
            batches = BalancedSampler(samples(12), 12, shuffle=False, speeds=[2, 1])
            batches.attach(model, fp16_compress_hook, dist.group.WORLD)
            loader = DataLoader(samples(12), batch_sampler=batches)
            for _, index in batches.steps(loader):
                model(index[:, None].float()).mean().backward()
            return model.module.weight.grad.item()

        self.assertEqual(ranks.run(2, body), [5.5, 5.5])  # the mean of 0 to 11


class LockstepTraining(Training, unittest.TestCase):
    pass


class GlooTraining(Training, unittest.TestCase):
    backend = "gloo"


if __name__ == "__main__":
    import lockstep.torch

    print(f"torch {torch.__version__}, form {lockstep.torch.form()[0]}")
    unittest.main(verbosity=2)
