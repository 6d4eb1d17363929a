#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""recurrent_parity.py PROGRAM [SEED]: LSTM and GRU layers and cells, forward and gradients, ours
against torch.nn's.

Random layers, sizes, states and lengths; PyTorch gets lengths by pack_padded_sequence(). Results,
states and the gradients of x, the first states and all parameters must be no farther (L2 norm) from
PyTorch in float64 than twice what PyTorch in float32 is, or than a few roundings; of few elements,
where a small distance is chance, than up to some times that. Exit 77: skipped, with a reason.
"""

import random
import subprocess
import sys
import tempfile

try:
    import torch
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
except ImportError as error:
    print(f"skipped: python3-torch is needed ({error})")
    sys.exit(77)
from operators_parity import ROUNDING, distance  # noqa: E402
from tensor_file import read_safetensors, write_safetensors  # noqa: E402

CASES = 48
LEAST = 3 * ROUNDING  # sums of many steps: smaller distances do not count
KINDS = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU,
         "lstm_cell": torch.nn.LSTMCell, "gru_cell": torch.nn.GRUCell}


class Case:
    """A module with its inputs, by the names that the program reads."""

    def __init__(self, kind):
        self.kind = kind
        self.is_cell = kind.endswith("cell")
        self.inputs, self.hidden = random.choice([1, 3, 24, 80]), random.choice([1, 5, 16, 64])
        self.layers, self.two = random.randint(1, 3), random.randint(0, 1)
        self.bias = random.choice([True, True, False])
        n, steps = random.choice([1, 2, 5, 16]), random.choice([1, 2, 7, 33])
        if self.is_cell:
            self.layers, self.two = 1, 0
        self.module = self.make_module()
        rows = [] if self.is_cell else [self.layers * (1 + self.two)]
        x = [n, self.inputs] if self.is_cell else [n, steps, self.inputs]
        self.tensors = {"x": torch.randn(x)}
        if random.random() < 0.7:
            self.tensors["h0"] = torch.randn(rows + [n, self.hidden])
            if self.has_c():
                self.tensors["c0"] = torch.randn(rows + [n, self.hidden])
        if not self.is_cell and random.random() < 0.6:
            self.tensors["lengths"] = torch.randint(1, steps + 1, [n])

    def make_module(self):
        options = {"bias": self.bias}
        if not self.is_cell:
            options.update(num_layers=self.layers, bidirectional=bool(self.two), batch_first=True)
        return KINDS[self.kind](self.inputs, self.hidden, **options)

    def has_c(self):
        return self.kind.startswith("lstm")

    def arguments(self):
        return [self.kind] + [str(int(v)) for v in (self.inputs, self.hidden, self.layers,
                                                    self.two, not self.bias)]

    def first(self, given):
        if "h0" not in given:
            return None
        return (given["h0"], given["c0"]) if self.has_c() else given["h0"]

    def forward(self, module, given):
        """The results and last states by name."""
        x, lengths = given["x"], given.get("lengths")
        if self.is_cell:
            state = module(x, self.first(given))
            return dict(zip("hc", state)) if self.has_c() else {"h": state}
        if lengths is not None:
            x = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        y, state = module(x, self.first(given))
        if lengths is not None:
            y = pad_packed_sequence(y, batch_first=True, total_length=given["x"].shape[1])[0]
        return {"y": y, **(dict(zip("hc", state)) if self.has_c() else {"h": state})}

    def torch_results(self, dtype, goals):
        module = self.make_module().to(dtype)
        module.load_state_dict({k: v.to(dtype) for k, v in self.module.state_dict().items()})
        given = {k: t.to(dtype).requires_grad_() if t.is_floating_point() else t
                 for k, t in self.tensors.items()}
        out = self.forward(module, given)
        sum((t * goals[k].to(dtype)).sum() for k, t in out.items()).backward()
        out.update({f"grad_{k}": t.grad for k, t in given.items() if t.is_floating_point()})
        out.update({f"grad_rnn.{k}": p.grad for k, p in module.named_parameters()})
        return {k: t.detach() for k, t in out.items()}

    def run(self, program, goals):
        tensors = {**self.tensors, **{f"goal_{k}": t for k, t in goals.items()},
                   **{f"rnn.{k}": v for k, v in self.module.state_dict().items()}}
        with tempfile.TemporaryDirectory() as folder:
            write_safetensors(f"{folder}/case", tensors)
            subprocess.run([program, f"{folder}/case", f"{folder}/results"] + self.arguments(),
                           check=True, timeout=120)
            return read_safetensors(f"{folder}/results")


def compare(program, case):
    """The number of results that are too far away, and the largest share of the limit."""
    with torch.no_grad():
        shapes = case.forward(case.module, case.tensors)
    goals = {k: torch.randn(t.shape) for k, t in shapes.items()}
    ours = case.run(program, goals)
    exact = case.torch_results(torch.float64, goals)
    theirs = case.torch_results(torch.float32, goals)
    n_wrong, worst = 0, 0.0
    for key, want in exact.items():
        got = ours[key]
        limit = 2 * max(distance(theirs[key], want), LEAST) * (1 + 8 / want.numel())
        share = distance(got, want) / limit if got.shape == want.shape else float("inf")
        if not share <= 1:
            n_wrong += 1
            print(f"too far away: {' '.join(case.arguments())} on {list(case.tensors['x'].shape)}, "
                  f"lengths {case.tensors.get('lengths')}: {key}: {list(got.shape)} for "
                  f"{list(want.shape)}, {share:.2f} of the limit")
        worst = max(worst, share)
    return n_wrong, worst


def main():
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 11
    print(f"seed {seed}")
    n_wrong, worst = 0, 0.0
    for i in range(CASES):
        random.seed(f"{seed} {i}")
        torch.manual_seed(random.getrandbits(32))
        wrong, share = compare(sys.argv[1], Case(list(KINDS)[i % len(KINDS)]))
        n_wrong, worst = n_wrong + wrong, max(worst, share)
    print(f"{CASES} cases: at most {2 * worst:.2f} times as far from float64 as PyTorch, or as "
          f"{LEAST:.1e}; {n_wrong} too large")
    sys.exit(1 if n_wrong else 0)


if __name__ == "__main__":
    main()
