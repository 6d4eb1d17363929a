# SPDX-License-Identifier: Apache-2.0
"""imagenet_parity.py BIN-DIR ARCH: weights go both ways between the imagenet program and
torchvision, and evaluate alike on the same images."""

import json
import os
import random
import struct
import subprocess
import sys
import tempfile

try:
    import torch
    import torchvision
    from PIL import Image
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

ARCH = sys.argv[2]
NOISE = {"mobilenet_v3_small": 0.1}.get(
    ARCH, 0
)  # where the classes of initial weights hardly differ
SIDE = 64
TYPES = {torch.float32: "F32", torch.int64: "I64"}


def make_images(folder):
    noise = random.Random(5)
    for split, n in (("train", 6), ("val", 5)):
        for c in range(3):
            os.makedirs(f"{folder}/{split}/class{c}")
            for i in range(n):
                size = noise.randrange(60, 120), noise.randrange(60, 120)
                image = Image.effect_noise(size, 60).convert("RGB")
                image.paste((c * 100, 30, 200 - c * 100), (10, 10, 40 + i, 50))
                image.save(f"{folder}/{split}/class{c}/{i}.{'png' if i % 2 else 'jpg'}", quality=95)


def imagenet(folder, *flags):
    command = [
        os.path.join(sys.argv[1], "imagenet"),
        folder,
        "-a",
        ARCH,
        "--image-size",
        str(SIDE),
        "-b",
        "6",
        "--seed",
        "1",
        "--metrics",
        f"{folder}/m.jsonl",
        *flags,
    ]
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    with open(f"{folder}/m.jsonl") as lines:
        return [json.loads(line) for line in lines][-1]["test_loss"]


def read_weights(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    types = {name: t for t, name in TYPES.items()}
    return {
        name: torch.frombuffer(
            bytearray(data[slice(*e["data_offsets"])]), dtype=types[e["dtype"]]
        ).reshape(e["shape"])
        for name, e in header.items()
        if name != "__metadata__"
    }


def write_weights(path, state):
    header, data = {}, b""
    for name, tensor in sorted(state.items(), key=lambda item: item[1].dtype != torch.int64):
        raw = tensor.contiguous().numpy().tobytes()
        header[name] = {
            "dtype": TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def their_loss(model, folder):
    transforms = torchvision.transforms
    set_ = torchvision.datasets.ImageFolder(f"{folder}/val", transforms.Compose([
        transforms.Resize(SIDE * 256 // 224), transforms.CenterCrop(SIDE), transforms.ToTensor(),
        transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]))
    model.eval()
    with torch.no_grad():
        images, labels = zip(*set_)
        return torch.nn.functional.cross_entropy(
            model(torch.stack(images)).double(), torch.tensor(labels)
        ).item()


def compare(what, ours, theirs):
    print(f"{what}: loss {ours:.6f} here, {theirs:.6f} in torchvision")
    assert abs(ours - theirs) <= 2e-4 * max(1, abs(theirs)), what


def main():
    torch.manual_seed(3)
    with tempfile.TemporaryDirectory() as folder:
        make_images(folder)
        model = getattr(torchvision.models, ARCH)(num_classes=3)

        ours = imagenet(
            folder,
            "--epochs",
            "2",
            "--lr",
            "0.002",
            "--save",
            f"{folder}/w.safetensors",
            "--save-best",
            "",
        )
        model.load_state_dict(read_weights(f"{folder}/w.safetensors"), strict=True)
        compare("saved here", ours, their_loss(model, folder))

        model = getattr(torchvision.models, ARCH)(num_classes=3)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(NOISE * torch.randn_like(p))
        for prefix, lacks in (("", ()), ("module.", ()), ("", ("num_batches_tracked",))):
            state = {
                prefix + name: t
                for name, t in model.state_dict().items()
                if not name.endswith(lacks or "?")
            }
            write_weights(f"{folder}/theirs.safetensors", state)
            ours = imagenet(folder, "-e", "--pretrained", f"{folder}/theirs.safetensors")
            compare(
                f"saved there, {prefix or 'no'} prefix, {len(state)} tensors",
                ours,
                their_loss(model, folder),
            )


main()
