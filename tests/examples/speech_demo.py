# SPDX-License-Identifier: Apache-2.0
"""speech_demo.py BIN-DIR PAGE: runs the commands of the page's demo of Tacotron2, then measures it.

The network reads phrases that it was not trained on: with teacher forcing and when it speaks
freely, the attention is diagonal, and speech ends by itself; it is nearer to the recording of
its own text than to those of other texts.
"""
import os
import re
import shutil
import sys

from job import folder, program, run, run_tests, skip

PAGE = os.path.abspath(sys.argv[2])
SECTION = "### A demo in minutes"
DIAGONAL = 0.7  # the same weight for all symbols gives about 0.36
PHRASES = 8
FEWEST = 6  # of PHRASES; chance gives 1


def commands():
    """Lines of four spaces up to the next section, without what a command prints."""
    with open(PAGE, encoding="utf-8") as page:
        section = page.read().split(f"\n{SECTION}\n")[1].split("\n## ")[0]
    lines = [line[4:] for line in section.splitlines() if line.startswith("    ")]
    text = "\n".join(lines).replace("\\\n", " ")
    found = [c for c in text.splitlines() if c.startswith(("lockstep ", "tacotron2 "))]
    assert len(found) == 3, found
    return found


def unseen_phrases(held):
    with open("phrases/metadata.csv", encoding="utf-8") as f:
        lines = [line.rstrip("\n").split("|") for line in f]
    seen = {line[2] for line in lines[:-held]}
    return [(line[0], line[2]) for line in lines[-held:] if line[2] not in seen]


def say(text, recording):
    """(diagonal, distance, whether it ended) of the text spoken freely."""
    output = run(
        *(program("tacotron2"), "say", text, "--init", "weights.safetensors"),
        *("--max-decoder-steps", "100", "--compare", f"phrases/wavs/{recording}.wav"),
    )
    found = re.search(r"diagonal (\S+), distance (\S+)", output)
    return float(found[1]), float(found[2]), "did not open" not in output


def demo_of_the_page_learns_to_read():
    speak, train, example = commands()
    run("sh", "-c", speak, timeout=600)
    output = run("sh", "-c", train, timeout=5400)
    last = [line for line in output.splitlines() if " test:" in line][-1]
    print(last)
    assert float(last.split("diagonal ")[1].split()[0]) > DIAGONAL, output
    run("sh", "-c", example)
    assert os.path.getsize("out.png") > 0

    phrases = unseen_phrases(int(train.split("--validation ")[1].split()[0]))[:PHRASES]
    assert len(phrases) == PHRASES, phrases
    own = 0
    good = 0
    for recording, text in phrases:
        diagonal, distance, ended = say(text, recording)
        others = [say(text, other)[1] for other, _ in phrases if other != recording]
        print(f"{text} diagonal {diagonal}, distance {distance}, of others {min(others)}")
        good += ended and diagonal > DIAGONAL
        own += distance < min(others)
    assert good >= FEWEST and own >= FEWEST, (good, own)


def main():
    if shutil.which("espeak-ng") is None:
        skip("espeak-ng is not installed")
    os.environ["PATH"] = sys.argv[1] + os.pathsep + os.environ["PATH"]
    with folder() as f:
        os.chdir(f)
        run_tests([demo_of_the_page_learns_to_read], needs=None)


if __name__ == "__main__":
    main()
