#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_sgd_cases: steps of torch.optim.SGD on one float64 parameter, for every combination of
options. Run by hand with PyTorch installed; the output is sgd_cases.h."""
import itertools

import torch

START = [0.5, -1.25, 2.0]
GRADS = [[0.1, -0.2, 0.3], [0.7, 0.05, -0.4], [-0.6, 0.9, 0.25], [0.01, 0.02, -1.5]]


def run(momentum, dampening, nesterov, weight_decay):
    p = torch.tensor(START, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([p], lr=0.1, momentum=momentum, dampening=dampening,
                                nesterov=nesterov,
                                weight_decay=weight_decay)
    for grad in GRADS:
        p.grad = torch.tensor(grad, dtype=torch.float64)
        optimizer.step()
        yield p.detach().tolist()


def numbers(values):
    return "{" + ", ".join(repr(v) for v in values) + "}"


def main():
    print("/* SPDX-License-Identifier: Apache-2.0 */")
    print(f"/* sgd_cases.h - made by make_sgd_cases.py with PyTorch {torch.__version__}. */")
    print("/* clang-format off */")
    print(f"static const double sgd_start[3] = {numbers(START)};")
    grads = ", ".join(numbers(g) for g in GRADS)
    print("static const double sgd_grads[4][3] = {\n    " + grads + "};")
    print("static const sgd_case sgd_cases[] = {")
    for momentum, dampening, nesterov, decay in itertools.product(
            (0.0, 0.9), (0.0, 0.3), (False, True), (0.0, 0.01)):
        if nesterov and (momentum == 0 or dampening != 0):
            continue
        print(f"    {{{momentum}, {dampening}, {decay}, {int(nesterov)}, {{")
        for values in run(momentum, dampening, nesterov, decay):
            print(f"        {numbers(values)},")
        print("    }},")
    print("};")
    print("/* clang-format on */")


if __name__ == "__main__":
    main()
