#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_adam_cases: steps of torch.optim.Adam and AdamW on one float64 parameter, for every
combination of options. Run by hand with PyTorch installed; the output is adam_cases.h."""
import itertools

import torch

from make_sgd_cases import GRADS, START, numbers


def run(kind, betas, eps, weight_decay, amsgrad):
    p = torch.tensor(START, dtype=torch.float64, requires_grad=True)
    optimizer = kind([p], lr=0.1, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad)
    for grad in GRADS:
        p.grad = torch.tensor(grad, dtype=torch.float64)
        optimizer.step()
        yield p.detach().tolist()


print("/* SPDX-License-Identifier: Apache-2.0 */")
print(f"/* adam_cases.h - made by make_adam_cases.py with PyTorch {torch.__version__}. */")
print("/* clang-format off */")
print(f"static const double adam_start[3] = {numbers(START)};")
grads = ", ".join(numbers(g) for g in GRADS)
print("static const double adam_grads[4][3] = {\n    " + grads + "};")
print("static const adam_case adam_cases[] = {")
RATES = (((0.9, 0.999), 1e-8), ((0.5, 0.7), 1e-2), ((0.0, 0.9), 1e-8))
for w, (betas, eps), decay, amsgrad in itertools.product((0, 1), RATES, (0.0, 0.05), (0, 1)):
    kind = (torch.optim.Adam, torch.optim.AdamW)[w]
    print(f"    {{{w}, {betas[0]}, {betas[1]}, {eps}, {decay}, {amsgrad}, {{")
    for values in run(kind, betas, eps, decay, bool(amsgrad)):
        print(f"        {numbers(values)},")
    print("    }},")
print("};")
print("/* clang-format on */")
