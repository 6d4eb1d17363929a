#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""operators_parity.py PROGRAM [SEED]: single operators, forward and gradients, ours against
PyTorch's.

Random shapes with sizes 0 and 1 and broadcasting. Each result must be no farther (L2 norm) from
PyTorch in float64 than twice what PyTorch in float32 is, or than a few roundings; of few elements,
where a small distance is chance, than up to eight times that. Exit 77: skipped, with a reason.
"""

import os
import random
import subprocess
import sys
import tempfile

try:
    import torch
    import torch.nn.functional as F
except ImportError as error:
    print(f"skipped: python3-torch is needed ({error})")
    sys.exit(77)
from tensor_file import read_safetensors, write_safetensors  # noqa: E402

# A rounding of float32 in each step of a formula: smaller distances do not count.
ROUNDING = 2.0**-23
STEPS = {"attention": 4}  # scores, their largest and sum, softmax, product; of others 1
ROUNDS = 4  # of shapes for each operator
LEAVES = 3  # the inputs that get gradients, if they are floating-point


def random_shape(least=0, most=5):
    n = random.randint(0, 4)
    return [random.choice([least, 1, 2, 3, 7, 40] if n < 3 else [least, 1, 2, most])
            for _ in range(n)]


def broadcast_pair():
    """Two shapes that broadcast: parts of one, with sizes of 1 in each."""
    whole = random_shape()
    cut = [[1 if random.random() < 0.35 else size for size in whole] for _ in range(2)]
    cut[random.randint(0, 1)] = cut[0][random.randint(0, len(whole)):] if whole else []
    return cut if random.random() < 0.8 else [whole, whole]


def normal(shape, low=None):
    t = torch.randn(shape)
    return t if low is None else t.abs() + low


OF_TWO = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
          "maximum": torch.maximum, "minimum": torch.minimum}
OF_ONE = {"sigmoid": torch.sigmoid, "silu": F.silu, "gelu": F.gelu, "tanh": torch.tanh,
          "exp": torch.exp, "log": torch.log, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt,
          "abs": torch.abs, "square": torch.square, "sin": torch.sin, "cos": torch.cos,
          "relu": torch.relu, "reciprocal": torch.reciprocal,
          "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
          "leaky_relu 0.2": lambda x: F.leaky_relu(x, 0.2), "elu 0.7": lambda x: F.elu(x, 0.7),
          "softplus 2 1.5": lambda x: F.softplus(x, 2, 1.5),
          "softplus 1 20": lambda x: F.softplus(30 * (x / 30)),
          "clamp -0.5 0.75": lambda x: x.clamp(-0.5, 0.75),
          "pow 2.5": lambda x: x.pow(2.5), "pow -1": lambda x: x.pow(-1),
          "scale -2.5 0.75": lambda x: -2.5 * x + 0.75}
POSITIVE = ("log", "sqrt", "rsqrt", "reciprocal", "pow 2.5", "pow -1")
REDUCE = {"sum": torch.sum, "mean": torch.mean, "amax": torch.amax, "amin": torch.amin}


def reductions():
    """Over a random set of dimensions; extremes and means of something."""
    for name, f in REDUCE.items():
        shape = random_shape(least=0 if name == "sum" else 1)
        axes = random.sample(range(len(shape)), random.randint(0, len(shape)))
        keep = random.randint(0, 1)
        named = [a - len(shape) if random.random() < 0.5 else a for a in axes]
        dims = tuple(axes) if axes else tuple(range(len(shape)))
        yield (" ".join(str(a) for a in [name, keep] + named), [normal(shape)],
               lambda x, f=f, dims=dims, keep=keep: f(x, dim=dims, keepdim=bool(keep))
               if dims else f(x))


def rows():
    """Operators along one dimension."""
    shape = [random.choice([0, 1, 3]), random.choice([1, 2, 17]), random.choice([1, 5, 40])]
    axis = random.choice([0, 1, 2, -1, -2])
    if shape[axis] == 0:
        axis = -1
    yield f"cumsum {axis}", [normal(shape)], lambda x: x.cumsum(axis)
    if shape[axis] > 1 and 0 not in shape:
        yield f"var {axis} 1", [normal(shape)], lambda x: x.var(axis, correction=1)
    added = normal(shape[1:])
    masks = torch.rand([shape[0], 1, shape[2]]) < 0.4
    masks.transpose(0, axis)[0] = False if axis != 1 else masks.transpose(0, axis)[0]
    for name, f in (("softmax", F.softmax), ("log_softmax", F.log_softmax)):
        yield f"{name} {axis}", [normal(shape)], lambda x, f=f: f(x, axis)
        yield (f"{name} {axis}", [normal(shape), added], lambda x, m, f=f: f(x + m, axis))
    if axis != 1:
        yield (f"softmax {axis}", [normal(shape), masks.byte()],
               lambda x, m: F.softmax(x.masked_fill(m.bool(), -torch.inf), axis))
    yield f"transpose {axis} 1", [normal(shape)], lambda x: x.transpose(axis, 1)
    yield "pad 0.5 1 2 0 3", [normal(shape)], lambda x: F.pad(x, (1, 2, 0, 3), value=0.5)


def selections():
    a, b = broadcast_pair()
    mask = (torch.rand(a) < 0.5).byte()
    yield "where", [normal(a), normal(b), mask], lambda x, y, m: torch.where(m.bool(), x, y)
    shape = random_shape()
    yield ("masked_fill -3", [normal(shape), (torch.rand(shape[1:]) < 0.5).byte()],
           lambda x, m: x.masked_fill(m.bool(), -3.0))
    indices = torch.randint(0, 11, random_shape(most=4)[:3])
    yield "embedding -1", [normal([11, 6]), indices], lambda w, i: F.embedding(i, w)
    yield ("embedding 3", [normal([11, 6]), indices],
           lambda w, i: F.embedding(i, w, padding_idx=3))


def losses():
    for reduction in ("mean", "sum"):
        how = 1 if reduction == "sum" else 0
        shape = random_shape(least=1)
        two = [normal(shape), normal(shape)]
        yield f"l1 {how}", two, lambda x, t, r=reduction: F.l1_loss(x, t, reduction=r)
        yield f"mse {how}", two, lambda x, t, r=reduction: F.mse_loss(x, t, reduction=r)
        yield (f"smooth_l1 {how} 0.5", two,
               lambda x, t, r=reduction: F.smooth_l1_loss(x, t, reduction=r, beta=0.5))
        wide = shape[1:] + [8]  # of one element sigmoid(x) - t may cancel
        yield (f"bce {how}", [normal(wide), torch.rand(wide), torch.rand(wide)],
               lambda x, t, w, r=reduction: getattr(
                   F.binary_cross_entropy_with_logits(x, t, reduction="none") * w, r)())


def channels(groups):
    """Input and output channels that the groups divide."""
    return [groups * random.choice([1, 2, 8, 17]) for _ in range(2)]


def transposed():
    """Output paddings are smaller than the stride or the dilation."""
    for axes, f in ((1, F.conv_transpose1d), (2, F.conv_transpose2d)):
        groups = random.choice([1, 1, 2, 3])
        c, o = channels(groups)
        k = [random.choice([1, 2, 3, 5]) for _ in range(axes)]
        stride, dilation = ([random.randint(1, 3) for _ in range(axes)] for _ in range(2))
        added = [random.randint(0, max(s, d) - 1) for s, d in zip(stride, dilation)]
        size = [random.choice([2, 3, 9]) for _ in range(axes)]
        padding = [random.randint(0, min(2, ((n - 1) * s + d * (k - 1) + a) // 2))
                   for n, s, d, k, a in zip(size, stride, dilation, k, added)]
        inputs = [normal([random.choice([0, 1, 3]), c, *size]), normal([c, o // groups, *k]),
                  normal([o])]
        args = (padding, added, groups, dilation)
        numbers = " ".join(str(v) for v in [*stride, *padding, *added, *dilation, groups])
        yield (f"conv_transpose{axes}d {numbers}", inputs[:random.choice([2, 3])],
               lambda x, w, b=None, f=f, s=stride, args=args: f(x, w, b, s, *args))


def convolutions():
    """Random shapes, of which the output has at least one position."""
    n, groups = random.choice([0, 1, 2, 5]), random.choice([1, 1, 2, 3])
    c, o = channels(groups)
    k, stride, dilation = random.choice([1, 2, 3, 5]), random.randint(1, 3), random.randint(1, 3)
    padding = random.randint(0, 3)
    reach = dilation * (k - 1) + 1
    t = max(reach - 2 * padding, 1) + random.choice([0, 0, 1, 6, 40])
    inputs = [normal([n, c, t]), normal([o, c // groups, k]), normal([o])]
    for count in (2, 3):
        yield (f"conv1d {stride} {padding} {dilation} {groups}", inputs[:count],
               lambda x, w, b=None: F.conv1d(x, w, b, stride, padding, dilation, groups))


def norms():
    groups = random.choice([1, 2, 3])
    shape = [random.choice([0, 1, 4]), channels(groups)[0], *random.choice([[], [7], [5, 3]])]
    if shape[1] * len(shape) > 2 * groups:
        yield (f"group_norm {groups}", [normal(shape), normal(shape[1:2]), normal(shape[1:2])],
               lambda x, w, b: F.group_norm(x, groups, w, b))
    yield ("layer_norm", [normal([random.choice([0, 1, 5]), 33])],
           lambda x: F.layer_norm(x, [33]))
    shape = random.choice([[2, 3, 5], [7, 1, 1], [3, 17, 4], [1, 16, 40]])
    yield ("batch_norm", [normal(shape), normal(shape[1:2]), normal(shape[1:2])],
           lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True))
    yield ("bn_add", [normal(shape), normal(shape), normal(shape[1:2]), normal(shape[1:2])],
           lambda x, y, w, b: F.relu(F.batch_norm(x, None, None, w, b, training=True) + y))


def of_two():
    for name, f in OF_TWO.items():
        a, b = broadcast_pair()
        yield name, [normal(a), normal(b, 0.5 if name == "div" else None)], f


def of_one():
    for name, f in OF_ONE.items():
        yield name, [normal(random_shape(), 0.25 if name in POSITIVE else None)], f


def products():
    """Matrices with leading dimensions that broadcast."""
    m, k, n = (random.choice([1, 2, 7, 40]) for _ in range(3))
    a, b = (shape[-3:] for shape in broadcast_pair())
    for left, right in ((a, b), (a, []), ([], b), ([3], [3]), ([0], [1])):
        yield "matmul 0", [normal(left + [m, k]), normal(right + [k, n])], torch.matmul
        yield ("matmul 1", [normal(left + [m, k]), normal(right + [n, k])],
               lambda x, y: x @ y.transpose(-1, -2))


def masked_attention(q, k, v, mask):
    """Queries of which all keys are masked give 0, where PyTorch's softmax gives NaN."""
    none = mask.amin(-1, keepdim=True) > 0
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=(mask == 0) | none)
    return y * (~none).to(y.dtype)


def attention():
    """Arguments: causal, scale (0: the default)."""
    sdpa = getattr(F, "scaled_dot_product_attention", None)
    if sdpa is None:
        print("torch has no attention: not compared")
        return
    t, d, e = (random.choice([1, 2, 5, 33, 80]) for _ in range(3))
    s = random.choice([2, 7, t + 1, 300])

    def of(n, h, s=s):
        return [normal([n, h, t, d]), normal([n, h, s, d]), normal([n, h, s, e])]

    for inputs in (of(2, 3), of(0, 2)):
        yield "attention 0 0", inputs, sdpa
    yield "attention 0 0.3", of(1, 2), lambda q, k, v: sdpa(q, k, v, scale=0.3)
    for inputs in (of(2, 2), of(2, 2, t)):
        yield "attention 1 0", inputs, lambda q, k, v: sdpa(q, k, v, is_causal=True)
    for shape in ([2, 1, 1, s], [t, s], [2, 3, t, s], [3, t, 1]):
        yield ("attention 0 0", of(2, 3) + [(torch.rand(shape) < 0.6).byte()], masked_attention)
        yield ("attention 0 0.3", of(2, 3) + [normal(shape)],
               lambda q, k, v, m: sdpa(q, k, v, attn_mask=m, scale=0.3))
    yield ("attention 0 0", [normal([2, 3, t, d]), normal([3, s, d]), normal([1, 1, s, e])],
           lambda q, k, v: sdpa(q, k.expand(2, 3, s, d), v.expand(2, 3, s, e)))


def all_cases(seed):
    """Each function's numbers depend on the seed alone, not on the functions before it."""
    for make in (of_two, of_one, reductions, rows, selections, losses, convolutions, transposed,
                 norms, products, attention):
        random.seed(f"{seed} {make.__name__}")
        torch.manual_seed(random.getrandbits(32))
        yield from make()


def torch_results(inputs, f, goal, dtype):
    leaves = [t.detach().clone().to(dtype).requires_grad_(i < LEAVES)
              if t.is_floating_point() else t for i, t in enumerate(inputs)]
    y = f(*leaves)
    (y * goal.to(dtype)).sum().backward()
    out = {"y": y.detach()}
    for i, t in enumerate(leaves):
        if t.is_floating_point() and i < LEAVES:
            out[f"grad{i}"] = torch.zeros_like(t) if t.grad is None else t.grad
    return out


def distance(got, want):
    """L2, relative to the larger of the norm and that of ones."""
    size = max(want.norm().item(), 1e-3 * max(want.numel(), 1) ** 0.5)
    return (got.double() - want).norm().item() / size


def lockstep_results(program, cases):
    tensors = {}
    for name, inputs, _, goal in cases:
        tensors.update({f"{name}/in{i}": t for i, t in enumerate(inputs)})
        tensors[f"{name}/goal"] = goal
    with tempfile.TemporaryDirectory() as folder:
        write_safetensors(f"{folder}/cases", tensors)
        subprocess.run([program, f"{folder}/cases", f"{folder}/results"], check=True, timeout=300,
                       env={**os.environ, "LOCKSTEP_THREADS": "2"})
        return read_safetensors(f"{folder}/results")


def main():
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 11
    print(f"seed {seed}")
    cases = []
    for i in range(ROUNDS):
        for name, inputs, f in all_cases(f"{seed} {i}"):
            goal = torch.randn(f(*inputs).shape)
            cases.append((f"{len(cases)} {name}", inputs, f, goal))
    ours = lockstep_results(sys.argv[1], cases)
    n_wrong, worst = 0, 0.0
    for name, inputs, f, goal in cases:
        exact = torch_results(inputs, f, goal, torch.float64)
        theirs = torch_results(inputs, f, goal, torch.float32)
        for key, want in exact.items():
            got = ours[f"{name}/{key}"]
            steps = STEPS.get(name.split()[1], 1)
            limit = 2 * max(distance(theirs[key], want), steps * ROUNDING)
            limit *= 1 + 3 / max(want.numel(), 1)
            is_wrong = got.shape != want.shape or not distance(got, want) <= limit
            if is_wrong:
                print(f"distance too large: {name} of {[list(t.shape) for t in inputs]}: {key}: "
                      f"{list(got.shape)} for {list(want.shape)}, "
                      f"{distance(got, want) if got.shape == want.shape else float('nan'):.2e}, "
                      f"at most {limit:.2e}")
            else:
                worst = max(worst, distance(got, want) / limit * 2)
            n_wrong += is_wrong
    print(f"{len(cases)} cases: at most {worst:.2f} times as far from float64 as PyTorch, or as "
          f"{ROUNDING:.1e}; {n_wrong} too large")
    sys.exit(1 if n_wrong else 0)


if __name__ == "__main__":
    main()
