# SPDX-License-Identifier: Apache-2.0
"""Trainings with lockstep.torch.elastic that lose ranks. LS_TEST_TOOL: the tool lockstep.
LS_TEST_SEED: of the random kills; LS_TEST_FULL: more of them."""
import contextlib
import glob
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import ranks
import torch
import torch.distributed as dist
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

import lockstep.torch.elastic as elastic
from lockstep.torch import _elastic_data, _elastic_job, _elastic_state, _elastic_sum

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT = os.path.join(HERE, "elastic_train.py")
DEADLINE_S = 600  # of a whole training: it starts processes that import torch
EPOCHS, SAMPLES = 2, 203
HAS_SCALER = hasattr(torch.amp, "GradScaler")  # for CPU
HAS_PLANES = hasattr(dist, "get_backend_config")
HAS_FSDP2 = hasattr(dist, "device_mesh")


ELASTIC = ("--elastic",)
REPLACED = ("--elastic", "--max-restarts", "1000")


class Training:
    """A job of elastic_train.py in a folder of its own."""

    def __init__(self, n, *arguments, flags=(), script=SCRIPT, **variables):
        self.begin()
        flags = ("-n", n, *flags)
        self.process = self.start((), flags, script, arguments, variables)

    def begin(self):
        self.folder = tempfile.mkdtemp(prefix="lockstep-test-")
        self.lost = set()  # members that the test has killed
        self.allow(0)
        self.log = open(os.path.join(self.folder, "log"), "w+")

    def start(self, before, flags, script, arguments, variables):
        command = [*before, os.environ["LS_TEST_TOOL"], "run", *flags, script, self.folder]
        return subprocess.Popen(
            [str(word) for word in (*command, *arguments)],
            env={**os.environ, "PYTHON_EXEC": sys.executable, **variables},
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )

    def text(self):
        with open(self.log.name, errors="replace") as file:
            return file.read()

    def allow(self, steps):
        self.allowed = steps
        path = os.path.join(self.folder, "allowed")
        with open(path + ".new", "w") as file:
            file.write(str(steps))
        os.replace(path + ".new", path)

    def await_replacements(self, n):
        """Lets the training go on until n processes run its loop."""
        hold = os.path.join(self.folder, "hold")
        while len(self.with_state()) < n:
            open(hold, "w").close()
            self.allow(self.allowed + 1)
            self.wait_for(lambda: not os.path.exists(hold) or len(self.with_state()) == n)
        with contextlib.suppress(FileNotFoundError):
            os.remove(hold)

    def wait_for(self, condition):
        end = time.monotonic() + DEADLINE_S
        while not condition():
            assert self.process.poll() is None and time.monotonic() < end, self.text()
            time.sleep(0.002)

    def bodies(self, member):
        """What a member has written: [epoch, step, unit, samples] for each body of the loop."""
        try:
            with open(os.path.join(self.folder, f"samples.{member}")) as file:
                lines = file.read().split("\n")[:-1]
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines]

    def members(self):
        """Process ids by member of all that have started."""
        found = {}
        for path in glob.glob(os.path.join(self.folder, "pid.*")):
            with open(path) as file:
                text = file.read()
            if text:
                found[int(path.rsplit(".", 1)[1])] = int(text)
        return found

    def living(self):
        return {member: pid for member, pid in self.members().items() if member not in self.lost}

    def with_state(self):
        """Those of them that run the loop."""
        return [member for member in self.living() if self.bodies(member)]

    def end(self):
        """The sha256 that all ranks have printed."""
        try:
            code = self.process.wait(DEADLINE_S)
        finally:
            self.stop()
        text = self.text()
        assert code == 0, text
        assert "restart " not in text, text
        found = set(re.findall(r"end (\w{64})", text))
        assert len(found) == 1, text
        return found.pop()

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()
        self.log.close()

    def check_samples(self, lost, epochs=EPOCHS, samples=SAMPLES):
        """Each sample of each epoch is in one body, besides the last ones of lost members."""
        counts = {(epoch, sample): 0 for epoch in range(epochs) for sample in range(samples)}
        uncertain = set()
        for path in glob.glob(os.path.join(self.folder, "samples.*")):
            member = int(path.rsplit(".", 1)[1])
            bodies = self.bodies(member)
            if member in lost and bodies:
                # It may have been the only one with the result of its last step but one.
                step = bodies[-1][1] - 1
                open_ones = [body for body in bodies if body[1] >= step]
                bodies = [body for body in bodies if body[1] < step]
                uncertain |= {(body[0], sample) for body in open_ones for sample in body[3]}
            for epoch, _, _, read in bodies:
                for sample in read:
                    counts[(epoch, sample)] += 1
        wrong = {k: n for k, n in counts.items() if n != 1 and not (n == 0 and k in uncertain)}
        assert not wrong, f"{wrong}\n{self.text()}"

    def remove(self):
        shutil.rmtree(self.folder)


class Machines(Training):
    """The same on machines that are network namespaces, with a rank each."""

    SCRIPT = os.path.join(HERE, "..", "..", "tests", "harness", "netlab.sh")

    def __init__(self, n, *arguments):
        lab = subprocess.run(
            [self.SCRIPT, "up", str(n), "--owner", str(os.getpid())],
            stdout=subprocess.PIPE,
            text=True,
        )
        if lab.returncode == 77:
            raise unittest.SkipTest("no network namespaces")
        self.begin()
        key = os.path.join(self.folder, "key")
        with open(os.open(key, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(os.urandom(32).hex())
        self.variables = {"LS_NETLAB": lab.stdout.strip(), "LOCKSTEP_KEY_FILE": key}
        self.variables["GLOO_SOCKET_IFNAME"] = "eth0"
        flags = ("--nnodes", n, "--master-addr", "10.77.0.10", "--heartbeat-timeout", 4, *REPLACED)
        self.processes = [
            self.start(
                (self.SCRIPT, "exec", node),
                ("--node-rank", node, *flags),
                SCRIPT,
                arguments,
                self.variables,
            )
            for node in range(n)
        ]
        self.process = self.processes[0]

    def netlab(self, *words):
        subprocess.run([self.SCRIPT, *words], env={**os.environ, **self.variables}, check=True)

    def stop(self):
        for process in self.processes[1:]:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(DEADLINE_S if self.process.poll() == 0 else 0)
        self.netlab("down")  # kills what is left
        for process in self.processes:
            process.wait()
        super().stop()


@contextlib.contextmanager
def gated(training, epochs):
    """A training whose 3 ranks have begun, and of which the caller loses some; then runs it to its
    end. Shows its output if that fails. Gives the end's states in .states."""
    try:
        training.wait_for(lambda: len(training.with_state()) == 3)
        yield training
        training.allow(1 << 30)
        training.states = training.end()
        training.check_samples(training.lost, epochs=epochs)
    except BaseException:
        print(training.text())
        raise
    finally:
        training.stop()
    training.remove()


def trained(n, *arguments, flags=(), lost=None, script=SCRIPT, **samples):
    training = Training(n, *arguments, flags=flags, script=script)
    digest = training.end()
    if lost is not None:
        training.check_samples(lost, **samples)
    text = training.text()
    training.remove()
    return digest, text



class Parts(unittest.TestCase):
    def test_state_keeps_values_and_types(self):
        optimizer = torch.optim.Adam([torch.nn.Parameter(torch.ones(3))])
        optimizer.param_groups[0]["params"][0].grad = torch.ones(3)
        optimizer.step()
        state = optimizer.state_dict()
        tree = {"a": (1, [2.5, None]), 3: state, "r": _elastic_state.random_state()}
        text, tensors = _elastic_state.pack(tree)
        arrival = _elastic_state.Arrival(text)
        for target, value in zip(arrival.tensors, tensors):
            target.copy_(value)
        again = arrival.tree()
        self.assertEqual(again["a"], tree["a"])
        self.assertEqual(again["r"]["python"], tree["r"]["python"])
        self.assertEqual(repr(again[3]), repr(tree[3]))
        self.assertNotIn(b"pickle", text)

    def test_each_sample_is_in_one_unit(self):
        for n in range(1, 40):
            for n_units in (1, 2, 3, 5):
                for batch in (1, 2, 4):
                    partition = _elastic_data.Partition(torch.arange(n), n_units, batch)
                    places = [(s, u) for s in range(partition.n_steps) for u in range(n_units)]
                    rows = [partition.rows(*place).tolist() for place in places]
                    self.assertEqual(sorted(sum(rows, [])), list(range(n)))
                    if batch > 1 and n > 1:
                        is_alone = n % (n_units * batch) == 1
                        self.assertEqual([len(r) for r in rows].count(1), int(is_alone))

    def test_batch_samplers(self):
        data = TensorDataset(torch.arange(7))
        inner = BatchSampler(RandomSampler(data), 2, drop_last=True)

        class Part(list):
            batch_sampler = inner

        feed = _elastic_data.Feed(DataLoader(data, batch_sampler=Part()), False)
        self.assertEqual((feed.batch, feed.drop_last), (2, True))
        self.assertNotEqual(feed.order(1, 0).tolist(), list(range(7)))
        for sampler in ([[0, 3], [1, 2]], None):
            loader = DataLoader(data, batch_sampler=sampler) if sampler else DataLoader(data, None)
            with self.assertRaisesRegex(TypeError, "cannot use the batch sampler"):
                _elastic_data.Feed(loader, False)

    def test_tree_has_one_root_in_any_order(self):
        for n_units in range(1, 18):
            order = list(range(n_units))
            random.Random(n_units).shuffle(order)
            (root,) = _elastic_sum.pieces(order, n_units)
            self.assertEqual(root, (_elastic_sum.tree_height(n_units), 0))

    def test_result_of_another_rank_is_written_to_a_parameter(self):
        job = _elastic_job.Job.__new__(_elastic_job.Job)
        job.done, job._given, job._results = 0, {0: [torch.ones(3)]}, {}
        parameter = torch.nn.Parameter(torch.zeros(3))
        job.perform(lambda: None, lambda: [parameter], ends_together=True)
        self.assertEqual(parameter.tolist(), [1.0] * 3)

    def test_fully_sharded_models_are_refused(self):
        if not HAS_FSDP2:
            self.skipTest("this torch has no fully_shard")
        try:
            from torch.distributed.fsdp import fully_shard
        except ImportError:  # before torch 2.6
            from torch.distributed._composable.fsdp import fully_shard

        folder = tempfile.mkdtemp(prefix="lockstep-test-")
        ranks.join(os.path.join(folder, "store"), 0, 1)
        model = torch.nn.Linear(4, 4)
        fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (1,)))
        with self.assertRaisesRegex(TypeError, "fully_shard"):
            elastic.Run(model, torch.optim.SGD(model.parameters(), 0.1))
        dist.destroy_process_group()
        shutil.rmtree(folder)


    def test_complex_models_are_refused(self):
        model = torch.nn.Linear(2, 2, dtype=torch.complex64)
        with self.assertRaisesRegex(TypeError, "complex"):
            elastic.Run(model, torch.optim.SGD(model.parameters(), 0.1))


def on_ranks(n, train):
    """What train() returns on each rank of a job that is not elastic. Autograd runs in these
    processes only: those that are forked after it cannot use it."""

    def body(rank, n, store):
        ranks.join(store, rank, n)
        return train()

    return ranks.run(n, body)


def samples(n):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, 3, generator=generator), torch.randn(n, 1, generator=generator)


def linear():
    torch.manual_seed(2)
    return torch.nn.Linear(3, 1)


class Steps(unittest.TestCase):
    def test_accumulation_keeps_samples_of_ranks_without_a_last_batch(self):
        x, y = samples(9)

        def train():
            model = linear()
            run = elastic.Run(model, torch.optim.SGD(model.parameters(), 0.1))
            loader = DataLoader(TensorDataset(x, y), 2)
            for i, (source, target) in enumerate(run.steps(loader)):
                with contextlib.nullcontext() if i == 2 else run.no_sync():
                    (model(source) - target).square().mean().backward()
            found = [p.grad for p in model.parameters()]
            expected = [torch.zeros_like(gradient) for gradient in found]
            # Rank 0 has the samples 0 2, 4 6 and 8, rank 1 has 1 3 and 5 7.
            for batches in [[0, 2], [4, 6], [8]], [[1, 3], [5, 7]]:
                model = linear()
                for batch in batches:
                    (model(x[batch]) - y[batch]).square().mean().backward()
                for total, p in zip(expected, model.parameters()):
                    total += p.grad * sum(map(len, batches)) / 9
            torch.testing.assert_close(found, expected)

        on_ranks(2, train)

    def test_gradients_are_reduced_after_a_backward_that_failed(self):
        x, y = samples(8)

        def train():
            model = linear()
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            run = elastic.Run(model, optimizer)
            for source, target in run.steps(DataLoader(TensorDataset(x, y), 2)):
                inner = source.requires_grad_() * 1
                hook = inner.register_hook(lambda gradient: 1 // 0)  # behind those of the model
                loss = (model(inner) - target).square().mean()
                with self.assertRaises(ZeroDivisionError):
                    loss.backward(retain_graph=True)
                hook.remove()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            self.assertEqual(run.step, 2)
            return [p.tolist() for p in model.parameters()]

        first, second = on_ranks(2, train)
        self.assertEqual(first, second)

    def test_epochs_begin_where_a_checkpoint_ends(self):
        model = linear()
        run = elastic.Run(model, torch.optim.SGD(model.parameters(), 0.1))
        self.assertEqual(list(run.epochs(5, 3)), [3, 4])

    def test_lbfgs_makes_the_steps_of_one_process(self):
        x, y = samples(8)

        def train():
            model = linear()
            optimizer = torch.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe")
            run = elastic.Run(model, optimizer)
            for source, target in run.steps(DataLoader(TensorDataset(x, y), 8 // run._job.size)):

                def closure():
                    optimizer.zero_grad()
                    loss = (model(source) - target).square().mean()
                    loss.backward()
                    return loss

                optimizer.step(closure)
            return [p.detach() for p in model.parameters()]

        (expected,) = on_ranks(1, train)
        for found in on_ranks(2, train):
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)

    def test_second_call_of_a_closure_is_refused_with_shards(self):
        def train():
            model = linear()
            optimizer = torch.optim.LBFGS(model.parameters())
            run = elastic.Run(model, optimizer, shards=1)
            for source, target in run.steps(DataLoader(TensorDataset(*samples(2)), 2)):

                def closure():
                    loss = (model(source) - target).square().mean()
                    loss.backward()
                    return loss

                with self.assertRaisesRegex(RuntimeError, "closure once"):
                    optimizer.step(closure)

        on_ranks(1, train)

    def test_gradients_that_are_not_added_are_not_reduced(self):
        def train():
            model = linear()
            run = elastic.Run(model, torch.optim.SGD(model.parameters(), 0.1), shards=1)
            for source, _ in run.steps(DataLoader(TensorDataset(*samples(2)), 2)):
                loss = model(source).square().mean()
                slopes = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
                (loss + sum(slope.square().sum() for slope in slopes)).backward()
            self.assertEqual(run.step, 1)

        on_ranks(1, train)


class Losses(unittest.TestCase):
    def test_bits_with_shards_are_those_of_an_undisturbed_training(self):
        """Each of the first ranks is lost and replaced, rank 0 too."""
        arguments = ["--shards", 4, "--optimizers", *(["--scaler"] if HAS_SCALER else [])]
        expected, _ = trained(2, *arguments, lost=())
        ends = ["1@5:optimizer", "2@10:raise-backward", "0@15:update"]
        ends = [word for end in ends for word in ("--die", end)]
        holds = [word for step in (7, 12, 17) for word in ("--hold", step)]
        found, text = trained(
            3, *arguments, *ends, *holds, "--workers", 2, flags=REPLACED, lost=(0, 1, 2)
        )
        self.assertEqual(found, expected)
        self.assertEqual(text.count("has been replaced"), 3, text)

    def test_two_ranks_are_lost_in_one_step(self):
        arguments = ["--shards", 5, "--plain"]
        expected, _ = trained(1, *arguments)
        ends = ["--die", "0@5:begin", "--die", "2@5:forward"]
        found, _ = trained(4, *arguments, *ends, flags=ELASTIC, lost=(0, 2))
        self.assertEqual(found, expected)

    def test_samples_without_shards_are_used_once(self):
        trained(3, "--log-loss", "--die", "1@5:backward", flags=ELASTIC, lost=(1,))
        arguments = ["--hold", 8, "--die", "0@5:forward", "--workers", 2]
        arguments += ["--compile"] if hasattr(torch, "compile") else []
        trained(3, *arguments, flags=REPLACED, lost=(0,))

    def test_accumulated_gradients_survive(self):
        trained(3, "--accumulate", 3, "--die", "2@4:forward", flags=ELASTIC, lost=(2,))

    def test_spawned_workers_read_on(self):
        arguments = ["--workers", 1, "--start", "spawn", "--die", "1@4:forward"]
        trained(2, *arguments, flags=ELASTIC, lost=(1,))

    @unittest.skipUnless(HAS_PLANES, "this torch has no groups of several backends")
    def test_gradients_move_by_another_backend(self):
        arguments = ["--data-plane", "gloo", "--hold", 8, "--die", "0@5:forward", "--log-loss"]
        trained(3, *arguments, "--die", "2@11:backward", flags=REPLACED, lost=(0, 2))
        arguments = ["--shards", 4]
        expected, _ = trained(1, *arguments)
        ends = ["--die", "1@5:begin", "--hold", 7, "--die", "0@12:begin"]
        found, _ = trained(
            3, *arguments, "--data-plane", "gloo", *ends, flags=REPLACED, lost=(0, 1)
        )
        self.assertEqual(found, expected)

    @unittest.skipUnless(HAS_PLANES, "this torch has no groups of several backends")
    def test_stopped_rank_is_replaced_with_another_backend(self):
        """A rank that is stopped (SIGSTOP) does not answer when another one is lost."""
        arguments = ["--data-plane", "gloo", "--gate", "--epochs", 3]
        training = Training(3, *arguments, flags=REPLACED, LOCKSTEP_MEET_MS="3000")
        with gated(training, epochs=3):
            training.allow(5)
            training.wait_for(lambda: len(training.bodies(0)) > 5)  # waits in its step
            members = training.members()
            for member, number in ((1, signal.SIGSTOP), (2, signal.SIGKILL)):
                training.lost.add(member)
                os.kill(members[member], number)
            training.await_replacements(3)

    @unittest.skipUnless(os.environ.get("LS_TEST_FULL"), "in ./check --full")
    @unittest.skipUnless(HAS_PLANES, "this torch has no groups of several backends")
    def test_cut_network_with_another_backend(self):
        """A machine is cut off from the others, which go on, and comes back."""
        training = Machines(3, "--data-plane", "gloo", "--gate", "--epochs", 3)
        with gated(training, epochs=3):
            training.allow(5)
            training.wait_for(lambda: len(training.bodies(0)) > 5)  # waits in its step
            training.netlab("unplug", "2")
            training.allow(20)
            training.wait_for(lambda: "2 ranks go on" in training.text())
            training.lost.add(2)
            training.netlab("plug", "2")
            training.await_replacements(3)

    @unittest.skipUnless(importlib.util.find_spec("lightning"), "Lightning is not installed")
    def test_lightning_goes_on(self):
        """Rank 0 is lost in the last step of an epoch, and rank 1 replaced in the next."""
        script = os.path.join(HERE, "elastic_lightning.py")
        ends = ["--die", "0@16:forward", "--die", "1@20:backward", "--hold", 24]
        for more in ([], ["--accumulate", 2, "--workers", 1]):
            trained(3, *ends, *more, flags=REPLACED, lost=(0, 1), script=script)

    def test_random_kills(self):
        seed = int(os.environ.get("LS_TEST_SEED") or random.randrange(1 << 30))
        n_kills = 200 if os.environ.get("LS_TEST_FULL") else 20
        print(f"LS_TEST_SEED={seed}", flush=True)
        rng = random.Random(seed)
        while n_kills > 0:
            n_kills -= self.kill_some(rng, min(n_kills, 20))

    def kill_some(self, rng, n_kills):
        epochs = 2 + n_kills // 2
        arguments = ["--shards", 4, "--epochs", epochs]
        expected, _ = trained(2, *arguments)
        training = Training(3, *arguments, "--gate", flags=REPLACED)
        with gated(training, epochs=epochs):
            while len(training.lost) < n_kills:
                training.allow(training.allowed + rng.randrange(1, 5))
                self.kill_one(training, rng)
        self.assertEqual(training.states, expected)
        return n_kills

    def kill_one(self, training, rng):
        """At a random moment of the next steps, or while a new process starts or joins."""
        training.wait_for(lambda: training.with_state())
        if len(training.with_state()) < 2 or rng.random() < 0.5:
            training.await_replacements(3)
            training.allow(training.allowed + rng.randrange(1, 5))
        time.sleep(rng.uniform(0, 0.05))
        living = training.living()
        victim = rng.choice(sorted(living))
        if set(training.with_state()) - {victim} or victim not in training.with_state():
            training.lost.add(victim)
            os.kill(living[victim], signal.SIGKILL)


if __name__ == "__main__":
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}")
    unittest.main(verbosity=2)
