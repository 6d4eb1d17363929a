#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mutations.py [--each KIND KERNEL TYPE CASE] - faults that are put into the PTX must be found.

Each line of MUTATIONS changes one instruction of a kernel, whose operator cases must then fail on
the simulated card, and pass without the change. With --each all instructions of this kind in the
kernel are changed one by one; the lines of those that no case notices are printed.
In the environment: PTX_FILES, a pattern of the .ptx files; PTX_MODULES, the modules of all kernels;
PTX_COMPILE and PTX_LIBRARIES, a command of the compiler before and behind "-o MODULE FILE";
DEVICE_OPS, the program.
"""
import glob
import os
import re
import subprocess
import sys
import tempfile

import translate

LIMIT = 600  # seconds of a run

# A pattern, and what takes its place.
KINDS = {
    "barrier": (r"\b(bar|barrier)\.sync\s+0;", ""),
    "fence": (r"\bmembar\.gl;", ""),
    "release": (r"atom\.add\.release\.gpu\.u32", "atom.global.add.u32"),
    "mask": (r"(shfl\.sync\.down\.b32[^;]*), %r\d+;", r"\1, 65535;"),
    "address": (r"((?:ld|st)\.global(?:\.nc)?\.v[^;]*\[%rd\d+)(?:\+\d+)?\]", r"\1+4]"),
    "bound": (r"setp\.ge\.(u64|u32)", r"setp.gt.\1"),
    "last": (r"setp\.lt\.(u64|u32)", r"setp.le.\1"),
    "clamp": (r"\bmin\.(u64|s32)", r"max.\1"),
    "choice": (r"(selp\.b64\s+%rd\d+), ([^,]+), ([^,]+),", r"\1, \3, \2,"),
    "positive": (r"setp\.gtu(\.f32|\.f64)([^;]*, 0[fd]0+;)", r"setp.geu\1\2"),
    "wait": (r"cp\.async\.wait_all;", ""),
    "lane": (r"(mma\.sync[^{]*\{[^}]*\}, \{[^,]*), ([^,]*), ([^,]*), ", r"\1, \3, \2, "),
    "slice": (r"(mma\.sync[^{]*\{[^}]*\}, \{[^}]*\}, \{)([^,]*), ([^}]*)\}", r"\1\3, \2}"),
    "row": (r"(ldmatrix[^;]*\[%r\d+)(?:\+\d+)?\]", r"\1+16]"),
    "transposed": (r"x4\.trans\.shared", "x4.shared"),
    "causal": (r"setp\.gt\.u32(\s+%p\d+, %r\d+, %r\d+;)", r"setp.ge.u32\1"),
    "power": (r"ex2\.approx\.ftz\.f32 (%\w+), %\w+;", r"mov.f32 \1, 0f3F800000;"),
}

# Kernel, kind, number of the instruction of this kind in the kernel, type, operator case.
MUTATIONS = (
    ("attention_f32", "barrier", 0, "float32", "attention"),
    ("attention_keys_f32", "barrier", 1, "float32", "attention"),
    ("attention_queries_f32", "barrier", 0, "float32", "attention"),
    ("attention_queries_f32", "barrier", 2, "float32", "attention of rows of 300"),
    ("attention_64_bf16", "barrier", 0, "bfloat16", "attention of heads of 64"),
    ("attention_64_bf16", "wait", 0, "bfloat16", "attention of heads of 64"),
    ("attention_64_bf16", "lane", 40, "bfloat16", "attention of heads of 64"),
    ("attention_64_f16", "slice", 3, "float16", "attention of heads of 64"),
    ("attention_96_f16", "row", 5, "float16", "attention of heads of 96"),
    ("attention_128_bf16", "transposed", 3, "bfloat16", "attention of heads of 128"),
    ("attention_64_bf16", "causal", 0, "bfloat16", "attention of heads of 64"),
    ("attention_64_bf16", "power", 0, "bfloat16", "attention of heads of 64"),  # rescales
    ("attention_queries_64_bf16", "barrier", 0, "bfloat16", "attention of heads of 64"),
    ("attention_queries_64_bf16", "wait", 0, "bfloat16", "attention of heads of 64"),
    ("attention_queries_64_bf16", "lane", 20, "bfloat16", "attention of heads of 64"),
    ("attention_queries_96_f16", "slice", 7, "float16", "attention of heads of 96"),
    ("attention_queries_64_f16", "causal", 1, "float16", "attention of heads of 64"),
    ("attention_keys_64_bf16", "barrier", 0, "bfloat16", "attention of heads of 64"),
    ("attention_keys_64_bf16", "wait", 0, "bfloat16", "attention of heads of 64"),
    ("attention_keys_64_f16", "lane", 30, "float16", "attention of heads of 64"),
    ("attention_keys_128_bf16", "slice", 9, "bfloat16", "attention of heads of 128"),
    ("attention_keys_64_bf16", "transposed", 0, "bfloat16", "attention of heads of 64"),
    ("attention_keys_64_bf16", "causal", 1, "bfloat16", "attention of heads of 64"),
    ("attention_totals_bf16", "address", 0, "bfloat16", "attention of heads of 64"),
    ("column_sum_f32", "barrier", 23, "float32", "mul of channels"),
    ("mse_f32", "barrier", 22, "float32", "mse of 100000"),
    ("layer_norm_backward_sums_f32", "bound", 19, "float32", "layer norm of 257"),
    ("norm_train_f32", "barrier", 1, "float32", "pixels of 64 channels"),
    ("norm_train_bf16", "release", 0, "bfloat16", "pixels of 64 channels"),
    ("norm_backward_f32", "fence", 1, "float32", "pixels of 64 channels"),
    ("norm_train_bf16", "address", 10, "bfloat16", "sum of many pixels of 64 channels"),
    ("norm_backward_bf16", "positive", 0, "bfloat16", "sum of many pixels of 64 channels"),
    ("norm_backward_f32", "address", 8, "float32", "sum of many pixels of 64 channels"),
    ("move_4", "bound", 0, "float32", "slice"),
    ("move_16", "address", 1, "float32", "permute of long runs"),
    ("move_16", "choice", 0, "float32", "permute of long runs"),
    ("transpose_4", "barrier", 0, "float32", "permute"),
    ("transpose_4", "barrier", 1, "float32", "permute"),
    ("transpose_4", "clamp", 0, "float32", "permute of matrices"),
    ("transpose_4", "bound", 2, "float32", "permute of matrices"),
    ("relu_f32", "address", 0, "float32", "relu"),
    ("relu_f32", "last", 1, "float32", "relu of 4097"),
    ("activate_f32", "choice", 1, "float32", "gelu"),
    ("activate_bf16", "address", 0, "bfloat16", "gelu"),
    ("dropout_f32", "choice", 1, "float32", "dropout of 4097"),
    ("dropout_bf16", "address", 1, "bfloat16", "dropout of 4097"),
    ("cast_bf16", "bound", 3, "bfloat16", "cast of 9001"),
    ("cast_f32", "choice", 1, "bfloat16", "cast of 9001"),
    ("binary_bf16", "address", 0, "bfloat16", "add"),
    ("max_pool_f32", "bound", 0, "float32", "max pool 3x3"),
    ("avg_pool_f32", "bound", 0, "float32", "average pool"),
    ("avg_pool_f32", "clamp", 9, "float32", "average pool"),
    ("avg_pool_backward_f32", "last", 1, "float32", "average pool"),
    ("lstm_f32", "bound", 0, "float32", "lstm"),
    ("gru_backward_f32", "bound", 0, "float32", "gru"),
    ("repack_f32", "bound", 1, "float32", "conv2d"),
    ("unpack_f32", "bound", 2, "float32", "conv2d"),
    ("softmax_f32", "mask", 0, "float32", "softmax of 4097"),
    ("softmax_f32", "barrier", 0, "float32", "softmax of 4097"),
    ("layer_norm_f16", "barrier", 4, "float16", "layer norm of tokens"),
    ("layer_norm_f32", "address", 0, "float32", "layer norm of pixels"),
    ("layer_norm_f32", "clamp", 0, "float32", "layer norm of pixels"),
    ("layer_norm_backward_f32", "address", 0, "float32", "layer norm of pixels"),
    ("layer_norm_backward_bf16", "clamp", 2, "bfloat16", "layer norm of rows of 8208"),
    ("cross_entropy_f32", "clamp", 4, "float32", "cross entropy of 257"),
    ("cross_entropy_f32", "address", 4, "float32", "cross entropy of 257"),
    ("cross_entropy_f32", "fence", 0, "float32", "cross entropy of 257"),
    ("cross_entropy_f32", "fence", 1, "float32", "cross entropy of 257"),
    ("update_sgd_f32", "address", 0, "float32", "sgd"),
    ("update_adam_f32", "bound", 0, "float32", "adam"),
    ("embedding_f32", "address", 0, "float32", "embedding of rows"),
    ("embedding_f32", "choice", 0, "float32", "embedding of rows"),
    ("squares_f32", "choice", 1, "float32", "clip"),
    ("squares_f32", "barrier", 0, "float32", "clip"),
    ("squares_f32", "fence", 0, "float32", "clip"),
)


def find_kernel(kernel):
    """The text of the PTX file that has the kernel, and where its body begins and ends."""
    for path in sorted(glob.glob(os.environ["PTX_FILES"])):
        with open(path, encoding="ascii") as source:
            text = re.sub(r"//[^\n]*", "", source.read())
        start = re.search(rf"^\.entry _Z\d+{kernel}_on_card[^{{]*{{", text, re.M)
        if start:
            return text, start.end(), translate.end_of_braces(text, start.end())
    raise ValueError(f"no kernel {kernel}")


def places_of(kernel, kind):
    text, start, end = find_kernel(kernel)
    return [m for m in re.compile(KINDS[kind][0]).finditer(text, start, end)]


def passes(modules, device_type, case):
    """Whether the operator cases pass, and the first line that says why not: with the blocks of a
    card, and with 3, of which each then has several parts of the work."""
    for blocks in ("0", "3"):
        is_good, reason = run_cases(modules, device_type, case, blocks)
        if not is_good:
            return False, reason
    return True, ""


def run_cases(modules, device_type, case, blocks):
    command = [os.environ["DEVICE_OPS"], "--device", "cudahost", "--type", device_type, case]
    env = {**os.environ, "GPU_HOST_KERNELS": modules, "GPU_HOST_BLOCKS": blocks}
    done = subprocess.run(command, env=env, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=LIMIT)
    return done.returncode == 0, done.stdout.partition("\n")[0]


def run_changed(folder, kernel, kind, number, device_type, case):
    text, _, _ = find_kernel(kernel)
    place = places_of(kernel, kind)[number]
    changed = text[:place.start()] + place.expand(KINDS[kind][1]) + text[place.end():]
    code, module = f"{folder}/changed.c", f"{folder}/changed.so"
    with open(code, "w", encoding="ascii") as target:
        target.write(translate.translate(changed, {kernel}))
    command = [*os.environ["PTX_COMPILE"].split(), "-o", module, code]
    subprocess.run(command + os.environ["PTX_LIBRARIES"].split(), check=True)
    return passes(f"{module},{os.environ['PTX_MODULES']}", device_type, case)


def line_of(place):
    return place.string.count("\n", 0, place.start()) + 1


def check_table(folder):
    missed = 0
    for device_type, case in sorted({(m[3], m[4]) for m in MUTATIONS}):
        is_good, reason = passes(os.environ["PTX_MODULES"], device_type, case)
        if not is_good:
            sys.exit(f"{case} in {device_type} fails with unchanged kernels: {reason}")
    for kernel, kind, number, device_type, case in MUTATIONS:
        is_good, reason = run_changed(folder, kernel, kind, number, device_type, case)
        missed += is_good
        print(f"{kernel}, {kind} {number}: {'NOT FOUND' if is_good else reason}", flush=True)
    print(f"{len(MUTATIONS) - missed} of {len(MUTATIONS)} mutations found")
    return missed


def check_each(folder, kind, kernel, device_type, case):
    places = places_of(kernel, kind)
    lines = [line_of(place) for number, place in enumerate(places)
             if run_changed(folder, kernel, kind, number, device_type, case)[0]]
    print(f"{kernel}, {kind}: {len(places) - len(lines)} of {len(places)} found, not those of "
          f"lines {lines}")
    return len(lines)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        if sys.argv[1:2] == ["--each"]:
            sys.exit(check_each(scratch, *sys.argv[2:]) > 0)
        sys.exit(check_table(scratch) > 0)
