# SPDX-License-Identifier: Apache-2.0
"""convert_parity.py BIN-DIR [ARCH...]: checkpoints of every architecture, as torchvision's training
scripts save them, are converted by the command that imagenet prints, and imagenet loads the result.
Old names of DenseNet and of vision transformers, and auxiliary classifiers, are among them."""
import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile

try:
    import torch
    import torchvision

    list_models = torchvision.models.list_models
except (ImportError, AttributeError) as error:
    print(f"skipped: a Python with torchvision 0.14 or newer is needed ({error})")
    sys.exit(77)

CLASSES = 3
FEWEST = 70  # architectures that both have
ARGS = argparse.Namespace(model="any", lr=0.1, lr_milestones=[30, 60], weights=None)
# New names in the state_dict and old ones in files.
OLD_NAMES = (
    (re.compile(r"(denselayer\d+\.(?:norm|conv))([12])\."), r"\1.\2."),
    (re.compile(r"(encoder_layer_\d+\.mlp)\.0\."), r"\1.linear_1."),
    (re.compile(r"(encoder_layer_\d+\.mlp)\.3\."), r"\1.linear_2."),
)


def imagenet(*words):
    command = [os.path.join(sys.argv[1], "imagenet"), *words]
    return subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def side_of(arch):
    return 56 if arch == "vit_h_14" else 64 if arch.startswith("vit_") else 96


def make_images(folder):
    for c in range(CLASSES):
        os.makedirs(f"{folder}/val/{c}")
        image = torch.randint(0, 256, (3, 120, 100), dtype=torch.uint8)
        torchvision.io.write_png(image, f"{folder}/val/{c}/0.png")


def state_of(arch):
    """Random values under the names of old files. Only RegNet computes while it is constructed;
    other modules need no memory."""
    options = {"num_classes": CLASSES}
    if arch.startswith("vit_"):
        options["image_size"] = side_of(arch)
    if arch in ("googlenet", "inception_v3"):
        options.update(aux_logits=True, init_weights=False)
    with torch.device("cpu" if arch.startswith("regnet") else "meta"):
        module = torchvision.models.get_model(arch, **options)
    state = {}
    for name, value in module.state_dict().items():
        for new, old in OLD_NAMES:
            name = new.sub(old, name)
        zero = torch.zeros(value.shape, dtype=value.dtype)
        state["module." + name] = zero.uniform_(0.01, 0.02) if zero.is_floating_point() else zero
    return state


def check(folder, arch):
    source = f"{folder}/{arch}.pth"
    words = (folder, "-a", arch, "--image-size", str(side_of(arch)), "-e", "--pretrained")
    torch.save({"model": state_of(arch), "epoch": 3, "args": ARGS}, source)
    refused = imagenet(*words, source)
    assert refused.returncode != 0 and "python3 " in refused.stdout, refused
    command = refused.stdout[refused.stdout.index("python3 "):].strip()
    python = shlex.quote(sys.executable)
    subprocess.run(command.replace("python3", python, 1), shell=True, check=True,
                   stderr=subprocess.DEVNULL)
    os.remove(source)
    target = f"{folder}/{arch}-weights.safetensors"
    loaded = imagenet(*words, target)
    assert loaded.returncode == 0, f"{arch}: {loaded.stdout}"
    os.remove(target)


def main():
    archs = [name for name in list_models(torchvision.models)
             if "unknown architecture" not in imagenet("-a", name, "/nowhere").stdout]
    chosen = sys.argv[2:] or archs
    with tempfile.TemporaryDirectory() as folder:
        make_images(folder)
        for arch in chosen:
            check(folder, arch)
    assert len(archs) >= FEWEST, archs
    print(f"torchvision {torchvision.__version__}: {len(chosen)} architectures")


main()
