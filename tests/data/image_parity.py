#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""image_parity.py DUMP: our decoding, resizing and augmentation against Pillow's and
torchvision's, byte by byte.

Resizing is that of Pillow 13. An older Pillow always takes the rows first; here it gets the order
of Pillow 13.
"""
import io
import os
import random
import struct
import subprocess
import sys
import tempfile
import zlib

try:
    import numpy as np
    import torch
    import PIL
    from PIL import Image
    import torchvision.transforms.functional as F
    from torchvision import datasets, transforms
except ImportError as missing:
    print(f"skipped: {missing} (apt-get install python3-pil python3-torchvision)")
    sys.exit(77)

DUMP = sys.argv[1]
failures = []


def check(ok, what):
    if not ok:
        failures.append(what)
        print(f"FAILED: {what}")


def ours(*words):
    out = subprocess.run([DUMP] + [str(w) for w in words], capture_output=True, check=True).stdout
    line, data = out.split(b"\n", 1)
    width, height = (int(v) for v in line.split())
    return np.frombuffer(data, np.uint8).reshape(height, width, 3)


def same(a, b):
    return a.shape == b.shape and np.array_equal(a, b)


old_resize = Image.Image.resize


def resize_in_order_of_13(image, size, *rest, **options):
    """Image.resize() of an older Pillow, the columns first where Pillow 13 takes them first."""
    less_high = image.height - size[1]
    if less_high > 0 and less_high > 2 * (image.width - size[0]):
        image = old_resize(image, (image.width, size[1]), *rest, **options)
    return old_resize(image, size, *rest, **options)


if int(PIL.__version__.split(".")[0]) < 13:
    Image.Image.resize = resize_in_order_of_13


def picture(width, height, seed):
    """Soft colours, edges and noise: something of everything that a photo has."""
    r = np.random.default_rng(seed)
    small = Image.fromarray(r.integers(0, 256, (9, 12, 3), dtype=np.uint8))
    a = np.asarray(small.resize((width, height), Image.BICUBIC)).astype(np.int16)
    a = a + r.integers(-12, 13, a.shape)
    a[height // 4:height // 3, width // 5:width // 2] = (250, 10, 90)
    return Image.fromarray(np.clip(a, 0, 255).astype(np.uint8))


# --- files of every kind ---

def png(width, height, depth, color, rows, before=b"", interlace=0):
    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )
    raw = b"".join(b"\0" + row for row in rows)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, interlace))
        + before
        + chunk(b"IDAT", zlib.compress(raw))
        + chunk(b"IEND", b"")
    )


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def raw_pngs():
    """Every depth and colour type of the format, with random samples."""
    r = random.Random(4)
    width, height = 37, 11
    palette = chunk(b"PLTE", bytes(r.randrange(256) for _ in range(768)))
    clear = {0: b"\0\1", 2: b"\0\1\0\2\0\3", 3: bytes(range(0, 256, 3))}
    for color, channels, depths in (
        (0, 1, (1, 2, 4, 8, 16)),
        (2, 3, (8, 16)),
        (3, 1, (1, 2, 4, 8)),
        (4, 2, (8, 16)),
        (6, 4, (8, 16)),
    ):
        for depth in depths:
            row_bytes = (width * channels * depth + 7) // 8
            rows = [bytes(r.randrange(256) for _ in range(row_bytes)) for _ in range(height)]
            plte = chunk(b"PLTE", palette[8:8 + 3 * min(256, 1 << depth)]) if color == 3 else b""
            yield f"raw-{color}-{depth}.png", png(width, height, depth, color, rows, plte)
            if color in clear:
                trns = clear[color][:min(256, 1 << depth)] if color == 3 else clear[color]
                yield f"raw-{color}-{depth}-clear.png", png(
                    width, height, depth, color, rows, plte + chunk(b"tRNS", trns)
                )
            gamma = chunk(b"gAMA", struct.pack(">I", 30000))
            yield f"raw-{color}-{depth}-gamma.png", png(
                width, height, depth, color, rows, gamma + plte
            )


def encoded():
    photo = picture(301, 203, 1)
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: on its side
    for quality in (30, 85, 97):
        for sampling in (0, 1, 2):
            for progressive in (False, True):
                yield f"q{quality}-s{sampling}-{progressive}.jpg", photo, dict(
                    quality=quality, subsampling=sampling, progressive=progressive
                )
    yield "grey.jpg", photo.convert("L"), {}
    yield "cmyk.jpg", photo.convert("CMYK"), dict(quality=90)
    yield "exif.jpg", photo, dict(exif=exif.tobytes())
    yield "tiny.jpg", photo.resize((1, 1)), {}
    yield "narrow.jpg", photo.resize((3, 200)), {}
    yield "flat.jpg", photo.resize((257, 2)), {}
    yield "rgb.png", photo, {}
    yield "palette.png", photo.quantize(60), {}
    yield "bits.png", photo.convert("1"), {}
    yield "alpha.png", Image.merge("RGBA", (*photo.split(), photo.convert("L"))), {}
    yield "grey-alpha.png", Image.merge("LA", (photo.convert("L"), photo.split()[0])), {}


def write_files(folder):
    names = []
    for name, image, options in encoded():
        image.save(os.path.join(folder, name), **options)
        names.append(name)
    for name, data in raw_pngs():
        with open(os.path.join(folder, name), "wb") as f:
            f.write(data)
        names.append(name)
    return names


# --- comparisons ---

def compare_decoding(folder, names):
    for name in names:
        path = os.path.join(folder, name)
        check(
            same(ours("decode", path), np.asarray(Image.open(path).convert("RGB"))),
            f"decode {name}",
        )


def compare_parts(folder, names):
    """A part that is decoded alone has the pixels that it has in the whole image, at full size and
    smaller."""
    r = random.Random(1)
    for name in names:
        path = os.path.join(folder, name)
        shrinks = (1, 2, 4, 8) if name.endswith(".jpg") else (1,)
        for shrink in shrinks:
            with Image.open(path) as image:
                width, height = (-(-side // shrink) for side in image.size)
            whole = ours("part", path, 0, 0, width, height, shrink)
            for _ in range(12):
                w, h = r.randint(1, width), r.randint(1, height)
                x, y = r.randint(0, width - w), r.randint(0, height - h)
                check(same(ours("part", path, x, y, w, h, shrink), whole[y:y + h, x:x + w]),
                      f"part {name} {x} {y} {w} {h} of 1/{shrink}")


def compare_resizing(folder):
    r = random.Random(2)
    for width, height in ((301, 203), (203, 301), (1, 1), (2, 5), (64, 64), (700, 3)):
        path = os.path.join(folder, "resize.png")
        image = (
            picture(width, height, width)
            if width > 8 and height > 8
            else picture(90, 90, 3).resize((width, height))
        )
        image.save(path)
        sizes = [
            (width, height),
            (224, 224),
            (1, 1),
            (width, 7),
            (9, height),
            (333, 258),
            (3000, 2),
        ]
        sizes += [(r.randint(1, 500), r.randint(1, 500)) for _ in range(25)]
        for size in sizes:
            whole = np.asarray(image.resize(size, Image.BILINEAR))
            check(
                same(ours("resize", path, *size, 0, 0, *size), whole),
                f"resize {width}x{height} to {size}",
            )
            w, h = r.randint(1, size[0]), r.randint(1, size[1])
            x, y = r.randint(0, size[0] - w), r.randint(0, size[1] - h)
            check(same(ours("resize", path, *size, x, y, w, h), whole[y:y + h, x:x + w]),
                  f"resize {width}x{height} to {size}, part {x} {y} {w} {h}")


def our_samples(kind, folder, mode, size, count):
    out = subprocess.run(
        [DUMP, "samples", kind, folder, mode, str(size)], capture_output=True, check=True
    ).stdout
    lines = []
    for _ in range(count):
        line, out = out.split(b"\n", 1)
        lines.append([int(v) for v in line.split()])
    return lines, torch.from_numpy(
        np.frombuffer(out, np.float32).reshape(count, 3, size, size).copy()
    )


NORMALIZE = transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
NORMALIZE_CIFAR = transforms.Normalize((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))


def compare_folder(folder):
    for size in (224, 65):
        theirs = datasets.ImageFolder(
            folder,
            transforms.Compose(
                [
                    transforms.Resize(size * 256 // 224),
                    transforms.CenterCrop(size),
                    transforms.ToTensor(),
                    NORMALIZE,
                ]
            ),
        )
        lines, samples = our_samples("folder", folder, "eval", size, len(theirs))
        for i, (x, label) in enumerate(theirs):
            check(torch.equal(x, samples[i]), f"eval {theirs.samples[i][0]} at {size}")
            check(label == lines[i][7], f"label of {theirs.samples[i][0]}")
        lines, samples = our_samples("folder", folder, "train", size, len(theirs))
        for i, (path, _) in enumerate(theirs.samples):
            left, top, width, height, _, _, flip, _ = lines[i]
            image = F.resized_crop(
                Image.open(path).convert("RGB"), top, left, height, width, (size, size)
            )
            image = F.hflip(image) if flip else image
            check(torch.equal(NORMALIZE(F.to_tensor(image)), samples[i]), f"train {path} at {size}")
        check(len({line[6] for line in lines}) == 2, "some are mirrored and some are not")


def compare_center_of_small():
    """An image that is smaller than its crop is padded."""
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, "a"))
        for i, size in enumerate(((300, 40), (40, 301), (75, 74))):
            picture(*size, i).save(os.path.join(folder, "a", f"{i}.png"))
        theirs = datasets.ImageFolder(
            folder,
            transforms.Compose(
                [
                    transforms.Resize(64 * 256 // 224),
                    transforms.CenterCrop(64),
                    transforms.ToTensor(),
                    NORMALIZE,
                ]
            ),
        )
        _, samples = our_samples("folder", folder, "eval", 64, len(theirs))
        for i, (x, _) in enumerate(theirs):
            check(torch.equal(x, samples[i]), f"eval of small image {i}")
        # The crop's corner is drawn from what the padding leaves; here it pads further to reach
        # 130.
        lines, samples = our_samples("folder", folder, "pad", 130, len(theirs))
        for i, (path, _) in enumerate(theirs.samples):
            left, top, flip = lines[i][4], lines[i][5], lines[i][6]
            image = F.pad(Image.open(path).convert("RGB"), 400)
            image = F.crop(image, top + 400, left + 400, 130, 130)
            image = F.hflip(image) if flip else image
            check(torch.equal(NORMALIZE_CIFAR(F.to_tensor(image)), samples[i]), f"pad {path}")


def compare_cifar():
    with tempfile.TemporaryDirectory() as folder:
        r = np.random.default_rng(8)
        images = r.integers(0, 256, (50, 3, 32, 32), dtype=np.uint8)
        with open(os.path.join(folder, "test_batch.bin"), "wb") as f:
            for i in range(50):
                f.write(bytes([i % 10]) + images[i].tobytes())
        lines, samples = our_samples("cifar", folder, "pad", 32, 50)
        for i in range(50):
            left, top, flip = lines[i][4], lines[i][5], lines[i][6]
            check(-4 <= left <= 4 and -4 <= top <= 4, f"cifar {i}: crop within the padding")
            image = F.pad(Image.fromarray(images[i].transpose(1, 2, 0)), 4)
            image = F.crop(image, top + 4, left + 4, 32, 32)
            image = F.hflip(image) if flip else image
            check(torch.equal(NORMALIZE_CIFAR(F.to_tensor(image)), samples[i]), f"cifar {i}")
            check(lines[i][7] == i % 10, f"cifar label {i}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        for label in ("b", "a10", "a9"):
            os.mkdir(os.path.join(folder, label))
        inner = os.path.join(folder, "b")
        names = write_files(inner)
        compare_decoding(inner, names)
        compare_parts(inner, names)
        with tempfile.TemporaryDirectory() as other:
            compare_resizing(other)
        for i in range(12):
            picture(180 + 31 * i, 400 - 17 * i, i).save(
                os.path.join(folder, ("a9", "a10")[i % 2], f"{i}.JPEG"), quality=88
            )
        compare_folder(folder)
    compare_center_of_small()
    compare_cifar()
    print(f"{len(failures)} failures")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
