#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""images_torch.py: the peer of image_pipeline: the same files and augmentation in torchvision.

    images_torch.py --data DIR [--image-size N] [--batch N] [--passes N] [--evaluate]
"""
import argparse
import json
import statistics
import time

import torch
from torchvision import datasets, transforms


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--evaluate", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    size = args.image_size
    geometry = (
        [transforms.Resize(size * 256 // 224), transforms.CenterCrop(size)]
        if args.evaluate
        else [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip()]
    )
    normalize = transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    data = datasets.ImageFolder(
        args.data, transforms.Compose(geometry + [transforms.ToTensor(), normalize])
    )
    loader = torch.utils.data.DataLoader(data, batch_size=args.batch, shuffle=True, num_workers=0)
    rates = []
    for i in range(args.passes + 1):
        start = time.monotonic()
        n = sum(len(y) for _, y in loader)
        rates.append(n / (time.monotonic() - start))
    rates = rates[1:]  # the first one warms up
    print(json.dumps({"images_per_s": statistics.median(rates), "best": max(rates)}))


if __name__ == "__main__":
    main()
