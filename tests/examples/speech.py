# SPDX-License-Identifier: Apache-2.0
"""speech.py BIN-DIR: tacotron2 trains on sentences of `lockstep data speak`, and speaks."""
import json
import os
import re
import shutil
import struct
import wave

import event_files
from event_files import message
from job import folder, launched, program, run, run_tests, skip, tensors

os.environ["LOCKSTEP_THREADS"] = "1"
SENTENCES = 14
TINY = (
    *("--symbols-embedding-dim", "16", "--encoder-embedding-dim", "16"),
    *("--encoder-n-convolutions", "1", "--attention-rnn-dim", "24", "--decoder-rnn-dim", "24"),
    *("--prenet-dim", "16", "--attention-dim", "12", "--attention-location-n-filters", "4"),
    *("--attention-location-kernel-size", "7", "--postnet-embedding-dim", "12"),
    *("--postnet-n-convolutions", "2", "--n-frames-per-step", "8", "--mask-padding"),
)
COMMON = ("--validation", "2", "--batch-size", "3", *TINY)
SET = []


def tacotron2(*flags):
    return [program("tacotron2"), "-d", SET[0], *COMMON, *flags]


def metrics(path):
    with open(path) as f:
        return [json.loads(line) for line in f]


def resumed_run_has_the_bits_of_a_whole_one():
    with folder() as f:
        run(*launched(2, *tacotron2("--steps", "5", "--save", f"{f}/whole.safetensors")))
        part = ("--save", f"{f}/part.safetensors")
        run(*launched(2, *tacotron2("--steps", "3", *part)))
        run(*launched(2, *tacotron2("--steps", "5", "--resume", *part)))
        assert tensors(f"{f}/whole.safetensors") == tensors(f"{f}/part.safetensors")


def training_lowers_the_loss_and_draws_pictures():
    with folder() as f:
        flags = ("--epochs", "5", "--lr", "0.01", "--bs", "1", "--bucket", "--pictures", f)
        flags += ("--anneal-steps", "2,4", "--anneal-factor", "0.3", "--metrics", f"{f}/m.jsonl")
        output = run(*tacotron2(*flags, "-o", f, "--tensorboard", f"{f}/tb"))
        lines = [line for line in output.splitlines() if re.match("epoch .* test:", line)]
        losses = [float(line.split("loss ")[1].split()[0]) for line in lines]
        assert len(losses) == 5 and losses[-1] < 0.5 * losses[0], losses
        assert all("diagonal 0." in line for line in lines), lines
        rates = [m["lr"] for m in metrics(f"{f}/m.jsonl") if "lr" in m]
        assert abs(rates[0] - 0.01) < 1e-9 and abs(rates[-1] - 0.001) < 1e-9, rates
        for name in ("alignment", "mel"):
            for epoch in (1, 5):
                with open(f"{f}/{name}-{epoch:04d}.png", "rb") as png:
                    assert png.read(8) == b"\x89PNG\r\n\x1a\n"
            images = [
                message(fields[4][0])[4][0]
                for tag, _, fields in event_files.values(event_files.the_file(f"{f}/tb"))
                if tag == name
            ]
            with open(f"{f}/{name}-0005.png", "rb") as png:
                assert len(images) == 5 and images[-1] == png.read()
        weights = f"{f}/checkpoint_Tacotron2_last.safetensors"
        again = run(*tacotron2("--bs", "1", "--evaluate", "--init", weights))
        last = lines[-1].split("test:")[1].split()[:4]  # loss X diagonal Y
        assert "  ".join((" ".join(last[:2]), " ".join(last[2:]))) in again, (last, again)
        say_writes_a_sound_and_a_picture(f, weights)


def guided_attention_makes_the_alignment_diagonal():
    reached = []
    for weight in ("0", "10"):
        flags = ("--epochs", "12", "--lr", "0.02", "--bs", "2", "--p-convolution-dropout", "0")
        output = run(*tacotron2(*flags, "--guided-attention", weight))
        reached.append(float(output.split("epoch 12/12")[1].split("diagonal ")[1].split()[0]))
    assert reached[0] < 0.5 and reached[1] > 0.6, reached  # even attention is about 0.36


def png_size(path):
    with open(path, "rb") as png:
        return struct.unpack(">II", png.read(24)[16:])


def say_writes_a_sound_and_a_picture(f, weights):
    flags = ("--max-decoder-steps", "9", "--init", weights)
    files = ("-o", f"{f}/a.wav", "--picture", f"{f}/a.png")
    output = run(program("tacotron2"), "say", "the cat \u732b", *flags, *files)
    assert f"{f}/a.wav: " in output and "left out: U+732B" in output, output
    with wave.open(f"{f}/a.wav") as sound:
        assert sound.getframerate() == 22050 and sound.getnchannels() == 1
        assert 0 < sound.getnframes() <= 9 * 8 * 256, sound.getnframes()
    size = png_size(f"{f}/a.png")
    compared = run(
        *(program("tacotron2"), "say", "the cat", *flags, *files),
        *("--compare", os.path.join(SET[0], "wavs", "speak-00001.wav")),
    )
    assert 0 < float(compared.split(", distance ")[1].split()[0]) < 20, compared
    assert png_size(f"{f}/a.png")[1] > size[1] + 80, "no second mel in the picture"
    run(program("tacotron2"), "say", "the cat", *flags, "--compare", f"{f}/a.png", code=1)
    run(program("tacotron2"), "say", "the cat", *flags, "-o", f"{f}/none/a.wav", code=1)


def wrong_input_is_named():
    with folder() as f:
        cases = [
            (tacotron2("-d", f), "metadata.csv"),
            (tacotron2("--validation", "14"), "--validation 14"),
            (tacotron2("--encoder-embedding-dim", "18"), "must be equal"),
            (tacotron2("--postnet-kernel-size", "4"), "must be odd"),
            (tacotron2("--anneal-steps", "5;6"), "--anneal-steps 5;6: expected epochs"),
            ([program("tacotron2"), "say"], "say needs a text and --init FILE"),
            ([program("tacotron2"), "say", "a", "--init", f"{f}/absent"], f"{f}/absent"),
            ([program("tacotron2"), "say", "{HH}", "--init", f"{f}/absent"], "{"),
        ]
        for command, text in cases:
            output = run(*command, code=1)
            assert text in output, (command, output)


def main():
    if shutil.which("espeak-ng") is None:
        skip("espeak-ng is not installed")
    with folder() as f:
        SET.append(os.path.join(f, "speech"))
        run(program("lockstep"), "data", "speak", SET[0], "--count", str(SENTENCES))
        run_tests(
            [
                resumed_run_has_the_bits_of_a_whole_one,
                training_lowers_the_loss_and_draws_pictures,
                guided_attention_makes_the_alignment_diagonal,
                wrong_input_is_named,
            ],
            needs=None,
        )


if __name__ == "__main__":
    main()
