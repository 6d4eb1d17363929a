#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mel_parity.py MEL-DUMP: log mel spectrograms against librosa or, without it, torchaudio.

Signals: a voice of 20 harmonics that rises, stops and starts, over noise; noise alone; and, with
espeak-ng, a sentence. Bound, against float64: 1e-4 of each mel value, of 1e-4 for smaller values,
since kissfft computes in float32 and loud bins round the quiet ones of their frame. Exit 77:
skipped, with a reason.
"""

import os
import subprocess
import sys
import tempfile
import wave

BOUND, SMALL, RATE, SENTENCE = 1e-4, 1e-4, 22050, "The quick brown fox jumps over the lazy dog."


def skip(why):
    print("skipped:", why)
    sys.exit(77)


try:
    import numpy as np
except ImportError as error:
    skip(f"python3-numpy is needed ({error})")


def mel_of_librosa(librosa, samples):
    filters = librosa.filters.mel(
        sr=RATE, n_fft=1024, n_mels=80, fmin=0, fmax=8000, dtype=np.float64
    )
    spectrum = librosa.stft(
        samples, n_fft=1024, hop_length=256, pad_mode="reflect", dtype=np.complex128
    )
    return np.log(np.maximum(filters @ np.abs(spectrum), 1e-5)).T


def mel_of_torchaudio(torchaudio, samples):
    import torch

    spectrogram = torchaudio.transforms.MelSpectrogram(
        RATE,
        1024,
        hop_length=256,
        f_max=8000,
        n_mels=80,
        power=1,
        norm="slaney",
        mel_scale="slaney",
    ).double()
    return torch.log(spectrogram(torch.from_numpy(samples)).clamp(min=1e-5)).T.numpy()


def find_reference():
    try:
        import librosa

        return lambda samples: mel_of_librosa(librosa, samples)
    except ImportError:
        pass
    try:
        import torchaudio

        return lambda samples: mel_of_torchaudio(torchaudio, samples)
    except ImportError as error:
        skip(f"librosa or torchaudio is needed ({error})")


def voice(random):
    time = np.arange(2 * RATE) / RATE
    pitch = 2 * np.pi * (110 * time + 15 * time * time)
    tone = sum(np.sin(k * pitch + random.uniform(0, 6)) / k for k in range(1, 21))
    loud = (np.sin(2 * np.pi * 1.5 * time) > 0) * 0.2
    return loud * tone + 0.003 * random.standard_normal(len(time))


def write_wav(path, samples):
    with wave.open(path, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())


def read_wav(path):
    with wave.open(path, "rb") as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768.0


def make_signals(folder):
    random = np.random.default_rng(7)
    signals = {"voice": voice(random), "noise": 0.1 * random.standard_normal(30001)}
    for name, samples in signals.items():
        write_wav(f"{folder}/{name}.wav", samples)
    try:
        subprocess.run(["espeak-ng", "-w", f"{folder}/sentence.wav", SENTENCE], check=True)
    except FileNotFoundError:
        print("without a sentence: espeak-ng is not installed")
    return sorted(os.listdir(folder))


reference = find_reference()
failed = False
with tempfile.TemporaryDirectory() as folder:
    for name in make_signals(folder):
        path = f"{folder}/{name}"
        dump = subprocess.run([sys.argv[1], path], check=True, capture_output=True).stdout
        ours = np.frombuffer(dump, np.float32).reshape(-1, 80)
        theirs = reference(read_wav(path))
        theirs, ours = np.exp(theirs), np.exp(ours.astype(np.float64))
        distance = (np.abs(ours - theirs) / np.maximum(theirs, SMALL)).max()
        print(f"{name}: {len(ours)} frames, distance {distance:.2e}, bound {BOUND:.0e}")
        failed = failed or ours.shape != theirs.shape or not distance <= BOUND
sys.exit(1 if failed else 0)
