#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_grad_scaler_cases: steps of torch.amp.GradScaler with SGD or Adam on one float64 parameter,
of whose gradients some are not finite. Run by hand with PyTorch installed; the output is
grad_scaler_cases.h."""
import torch

from make_sgd_cases import GRADS, START, numbers

# init_scale, growth_factor, backoff_factor, growth_interval, gradients of the steps: finite (.),
# with an infinity (i, m: minus) or with a NaN (n).
CASES = (
    (65536.0, 2.0, 0.5, 3, "..i...n.......mi.ii....."),
    (65536.0, 2.0, 0.5, 2000, "iiiiiiiiiiiiiiiiiiii...."),
    (1000.0, 1.7, 0.3, 2, "......i.n.......i......."),
    (2.0**125, 2.0, 0.5, 1, "......i....."),
)
BAD = {".": None, "i": float("inf"), "m": float("-inf"), "n": float("nan")}


def run(adam, case):
    init, growth, backoff, interval, steps = case
    p = torch.tensor(START, dtype=torch.float64, requires_grad=True)
    if adam:
        optimizer = torch.optim.Adam([p], lr=0.1)
    else:
        optimizer = torch.optim.SGD([p], lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=init, growth_factor=growth,
                                  backoff_factor=backoff, growth_interval=interval)
    for i, kind in enumerate(steps):
        scaler.scale(torch.tensor(1.0))
        p.grad = torch.tensor(GRADS[i % 4], dtype=torch.float64) * scaler.get_scale()
        if BAD[kind] is not None:
            p.grad[i % 3] = BAD[kind]
        scaler.step(optimizer)
        scaler.update()
        yield scaler.get_scale(), scaler._get_growth_tracker(), p.detach().tolist()


print("/* SPDX-License-Identifier: Apache-2.0 */")
print("/* grad_scaler_cases.h - made by make_grad_scaler_cases.py with PyTorch "
      f"{torch.__version__.split('+')[0]}. */")
print("/* clang-format off */")
print(f"static const double scaler_start[3] = {numbers(START)};")
print("static const double scaler_grads[4][3] = {\n    " + ", ".join(map(numbers, GRADS)) + "};")
print("static const grad_scaler_case grad_scaler_cases[] = {")
for adam in (0, 1):
    for case in CASES:
        print(f"    {{{adam}, {case[0]!r}, {case[1]}, {case[2]}, {case[3]}, \"{case[4]}\", {{")
        for scale, growth, values in run(adam, case):
            print(f"        {{{scale!r}, {growth}, {numbers(values)}}},")
        print("    }},")
print("};")
print("/* clang-format on */")
