#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mel_expected.py > mel_expected.inc: librosa's log mel spectrogram of test_speech_mel.c's signal.

Needs librosa (0.10 or newer). All in float64.
"""

import librosa
import numpy as np

N = 1300


def signal():
    """A rising tone and noise of a linear congruential generator, as fill_signal() of the test."""
    state, out = 1, np.empty(N, np.float32)
    for i in range(N):
        state = (state * 1103515245 + 12345) % 2**31
        time = i / 22050
        tone = 0.5 * np.sin(2 * np.pi * (300 * time + 20000 * time * time))
        out[i] = np.float32(tone + 0.02 * (state / 2**30 - 1))
    return out


filters = librosa.filters.mel(sr=22050, n_fft=1024, n_mels=80, fmin=0, fmax=8000, dtype=np.float64)
spectrum = librosa.stft(
    signal().astype(np.float64), n_fft=1024, hop_length=256, pad_mode="reflect", dtype=np.complex128
)
mel = np.log(np.maximum(filters @ np.abs(spectrum), 1e-5)).T
print("/* SPDX-License-Identifier: Apache-2.0 */")
print("/* mel_expected.inc - made by mel_expected.py with librosa " + librosa.__version__ + ". */")
print("/* clang-format off */")
values = mel.reshape(-1)
for at in range(0, len(values), 8):
    print("    " + ", ".join(f"{value:.5f}F" for value in values[at : at + 8]) + ",")
