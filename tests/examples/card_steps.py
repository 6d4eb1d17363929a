# SPDX-License-Identifier: Apache-2.0
"""card_steps.py BIN-DIR: some steps on the simulated card have the losses of the reference.

tests/devices/ptx/ runs it with the kernels that nvcc compiled.
"""
import re
import shutil

from job import folder, program, run, run_tests
from speech import TINY

GPT = ("--layers", "2", "--heads", "2", "--width", "32", "--context", "17", "--batch-size", "2")


def losses_are_those_of_the_reference(*command):
    losses = []
    for device in ("cpu_ref", "cudahost"):
        output = run(*command, "--device", device, "--steps", "3", "-p", "1", timeout=900)
        losses.append([float(loss) for loss in re.findall(r"step \d+  loss ([\d.]+)", output)])
    assert len(losses[0]) == 3 and len(losses[1]) == 3, output
    assert all(abs(a - b) <= 2e-4 * a for a, b in zip(*losses)), losses


def gpt_learns_on_the_card_as_on_the_reference():
    for precision in ("fp32", "bf16", "fp16"):
        flags = ("--length", "1", "--precision", precision)
        losses_are_those_of_the_reference(program("gpt"), *GPT, *flags)


def tacotron2_learns_on_the_card_as_on_the_reference():
    if shutil.which("espeak-ng") is None:
        print("skipped: espeak-ng is not installed")
        return
    with folder() as f:
        run(program("lockstep"), "data", "speak", f"{f}/set", "--short", "--count", "4")
        flags = ("-d", f"{f}/set", "--validation", "1", "--batch-size", "2", *TINY)
        losses_are_those_of_the_reference(program("tacotron2"), *flags, "-o", f)


if __name__ == "__main__":
    run_tests(
        [
            gpt_learns_on_the_card_as_on_the_reference,
            tacotron2_learns_on_the_card_as_on_the_reference,
        ],
        needs=None,
    )
