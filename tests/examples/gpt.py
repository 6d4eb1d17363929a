# SPDX-License-Identifier: Apache-2.0
"""gpt.py BIN-DIR: examples/gpt on small texts: training, resuming, files with GPT-2's names of
weights, GPT-2's tokens, the text at the end."""
import json
import random
import re
import struct

from job import folder, launched, program, run, run_tests, tensors

LAYERS, HEADS, WIDTH, CONTEXT = 2, 2, 32, 32
TINY = (
    "--layers",
    str(LAYERS),
    "--heads",
    str(HEADS),
    "--width",
    str(WIDTH),
    "--context",
    str(CONTEXT),
    "--batch-size",
    "4",
    "--seed",
    "5",
)


def gpt(*flags):
    return [program("gpt"), *TINY, *flags]


def write_text(path, text):
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    return path


def sentences(path, n=120):
    """A text of a few words, whose order is random."""
    rng = random.Random(3)
    words = ("the rank", "sends a", "gradient", "to its", "neighbour", "and waits.\n")
    return write_text(path, " ".join(rng.choice(words) for _ in range(n * len(words))))


def text_of(output, prompt):
    """The text from the prompt on, up to the summary of the run."""
    assert prompt in output, output
    return re.split(
        r"\n(?:rank 0\| )?(?=test:|time:|\d+ \w+ on \d+ rank| +[\d.]+ \|)",
        output[output.index(prompt) :],
    )[0]


def two_ranks_learn_and_write_text():
    with folder() as f:
        data = sentences(f"{f}/data")
        metrics = f"{f}/m.jsonl"
        output = run(
            *launched(
                2,
                *gpt(
                    "--data",
                    data,
                    "--epochs",
                    "6",
                    "--metrics",
                    metrics,
                    "--prompt",
                    "the rank",
                    "--length",
                    "40",
                ),
            )
        )
        with open(metrics) as lines:
            values = [
                row["test_values"]["perplexity"]
                for row in map(json.loads, lines)
                if "test_values" in row
            ]
        assert len(values) == 6 and values[-1] < values[0] / 4, values
        assert len(text_of(output, "the rank")) > 40, output


def a_resumed_run_has_the_same_bits_and_text():
    with folder() as f:
        data = sentences(f"{f}/data")
        whole, parts = f"{f}/whole.safetensors", f"{f}/parts.safetensors"
        flags = ("--data", data, "--epochs", "2", "--prompt", "a gradient", "--length", "30")
        a = run(*launched(2, *gpt(*flags, "--steps", "9", "--save", whole)))
        run(*launched(2, *gpt(*flags, "--steps", "4", "--save", parts)))
        b = run(*launched(2, *gpt(*flags, "--steps", "9", "--save", parts, "--resume")))
        assert tensors(whole) == tensors(parts), "the weights differ"
        assert text_of(a, "a gradient") == text_of(b, "a gradient"), a + b


def the_seed_decides_the_text():
    with folder() as f:
        data = sentences(f"{f}/data")
        weights = f"{f}/w.safetensors"
        run(*gpt("--data", data, "--epochs", "1", "--save", weights, "--length", "0"))
        texts = [
            text_of(
                run(
                    *gpt(
                        "--data",
                        data,
                        "--init",
                        weights,
                        "-e",
                        "--prompt",
                        "Q:",
                        "--length",
                        "50",
                        "--seed",
                        seed,
                    )
                ),
                "Q:",
            )
            for seed in ("8", "8", "9")
        ]
        assert texts[0] == texts[1] != texts[2], texts


def a_text_that_was_learnt_by_heart_is_continued():
    with folder() as f:
        data = write_text(f"{f}/data", "abcdefghij" * 400)
        output = run(
            *gpt(
                "--data",
                data,
                "--epochs",
                "5",
                "--lr",
                "0.01",
                "--dropout",
                "0",
                "--temperature",
                "0",
                "--prompt",
                "cdefgh",
                "--length",
                "44",
            )
        )
        assert "\ncdefgh" + "ijabcdefgh" * 4 + "ijab\n" in "\n" + output, output


def shapes(prefix, extra):
    yield f"{prefix}wte.weight", (256, WIDTH)
    yield f"{prefix}wpe.weight", (CONTEXT, WIDTH)
    for i in range(LAYERS):
        for part, size in (
            ("ln_1", (WIDTH,)),
            ("attn.c_attn", (WIDTH, 3 * WIDTH)),
            ("attn.c_proj", (WIDTH, WIDTH)),
            ("ln_2", (WIDTH,)),
            ("mlp.c_fc", (WIDTH, 4 * WIDTH)),
            ("mlp.c_proj", (4 * WIDTH, WIDTH)),
        ):
            yield f"{prefix}h.{i}.{part}.weight", size
            yield f"{prefix}h.{i}.{part}.bias", size[-1:]
        if extra:  # the mask of attention, as in the files of OpenAI
            yield f"{prefix}h.{i}.attn.bias", (1, 1, CONTEXT, CONTEXT)
    yield f"{prefix}ln_f.weight", (WIDTH,)
    yield f"{prefix}ln_f.bias", (WIDTH,)


def write_gpt2(path, prefix, extra=False):
    """Random weights with the names and shapes of GPT-2's files."""
    rng = random.Random(4)
    header, data = {}, b""
    for name, size in shapes(prefix, extra):
        n = 1
        for d in size:
            n *= d
        part = struct.pack(f"<{n}f", *(rng.gauss(0, 0.1) for _ in range(n)))
        header[name] = {
            "dtype": "F32",
            "shape": size,
            "data_offsets": [len(data), len(data) + len(part)],
        }
        data += part
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    return path


def weights_with_the_names_of_gpt2_load_and_come_back():
    with folder() as f:
        data = sentences(f"{f}/data")
        for prefix in ("", "transformer."):
            theirs = write_gpt2(f"{f}/theirs.safetensors", prefix)
            ours = f"{f}/ours.safetensors"
            # So small a rate changes no weight.
            run(
                *gpt(
                    "--data",
                    data,
                    "--init",
                    theirs,
                    "--prefix",
                    prefix,
                    "--lr",
                    "1e-30",
                    "--lr-min",
                    "0",
                    "--epochs",
                    "1",
                    "--length",
                    "0",
                    "--batch-size",
                    "100",
                    "--save-best",
                    ours,
                )
            )
            assert tensors(ours) == tensors(theirs), "names or weights differ"
        # A prefix that all names of the file have needs no flag.
        run(*gpt("--data", data, "--init", theirs, "-e"))
        theirs = write_gpt2(f"{f}/masks.safetensors", "", extra=True)
        output = run(*gpt("--data", data, "--init", theirs, "-e"), code=1)
        assert "h.0.attn.bias" in output and "--skip-mismatched" in output, output
        output = run(*gpt("--data", data, "--init", theirs, "-e", "--skip-mismatched"))
        assert "28 of 28 tensors loaded" in output and "2 unexpected" in output, output


def write_tokens(where):
    """A vocabulary of the bytes and a few merges; the flags that use it."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    vocab = {chr(b if b in printable else next(others)): b for b in range(256)}
    merges = ["t h", "th e", "\u0120 the", "n d", "a nd"]
    for merge in merges:
        vocab[merge.replace(" ", "")] = len(vocab)
    write_text(f"{where}/vocab.json", json.dumps(vocab))
    write_text(f"{where}/merges.txt", "#version: 0.2\n" + "\n".join(merges) + "\n")
    return ("--vocab", f"{where}/vocab.json", "--merges", f"{where}/merges.txt")


def tokens_of_gpt2_are_trained_on():
    with folder() as f:
        data = sentences(f"{f}/data")
        weights = f"{f}/w.safetensors"
        output = run(
            *gpt(
                "--data",
                data,
                *write_tokens(f),
                "--epochs",
                "1",
                "--save-best",
                weights,
                "--prompt",
                "and then",
                "--length",
                "20",
            )
        )
        text_of(output, "and then")
        assert len(tensors(weights)["wte.weight"]) == 261 * WIDTH * 4


def mistakes_get_a_clear_line():
    with folder() as f:
        data = sentences(f"{f}/data")
        short = write_text(f"{f}/short", "short")
        for flags, part in (
            (("--data", f"{f}/none"), "/none: cannot be opened: No such file"),
            (("--data", short), "has no samples"),
            (("--data", data, "--vocab", short), "both files"),
            (("--data", data, "--vocab", short, "--merges", short), "no JSON object"),
            (("--data", data, "--heads", "5"), "reshape"),
            (("--data", data, "-e", "--prompt", ""), "the prompt is empty"),
        ):
            output = run(*gpt(*flags), code=1)
            assert part in output, output


if __name__ == "__main__":
    run_tests(
        [
            two_ranks_learn_and_write_text,
            a_resumed_run_has_the_same_bits_and_text,
            the_seed_decides_the_text,
            a_text_that_was_learnt_by_heart_is_continued,
            weights_with_the_names_of_gpt2_load_and_come_back,
            tokens_of_gpt2_are_trained_on,
            mistakes_get_a_clear_line,
        ]
    )
