/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mel.h - log mel spectrograms as NVIDIA's Tacotron2 computes them, and sound from them by
 * Griffin-Lim.
 *
 * Spectrum   STFT of MEL_FFT samples, periodic Hann window, a frame each MEL_HOP samples, centred:
 *            the ends are padded by reflection. Magnitudes, not powers.
 * Mel        MEL_BANDS triangles from 0 to 8000 Hz, Slaney's scale and norm: the matrix of
 *            librosa.filters.mel(sr=22050, n_fft=1024, n_mels=80, fmax=8000).
 * Log        natural, of values of at least 1e-5.
 * Accuracy   Mel values are within 1e-4 of librosa's in float64, relative; values below 1e-4 within
 *            1e-8, because kissfft computes in float32.
 * Layout     (T,MEL_BANDS): band b of frame t is mel[t * MEL_BANDS + b].
 * Threads    A mel_transform has working memory: one thread at a time.
 */
#ifndef MODELS_SPEECH_MEL_H
#define MODELS_SPEECH_MEL_H

#include "models/speech/error.h"

enum {
    MEL_RATE = 22050,
    MEL_FFT = 1024,
    MEL_HOP = 256,
    MEL_BANDS = 80,
    MEL_BINS = MEL_FFT / 2 + 1,
    MEL_MAX_FRAMES = 16384,
    MEL_MIN_SAMPLES = MEL_FFT / 2 + 1, /* reflection needs as many */
    MEL_MIN_FRAMES = 4,                /* of mel_invert(): the fewest of which sound has as many */
};

typedef struct mel_transform mel_transform;

/* LS_ENOMEM: no memory. */
LS_MUST_USE ls_status mel_create(mel_transform **out, speech_error *error);
void mel_destroy(mel_transform *m); /* NULL is allowed */

/* Frames of so many samples. */
size_t mel_frames(size_t samples);
/* Samples that mel_invert() gives for so many frames. */
size_t mel_samples(size_t frames);

/* mel[mel_frames(n)][MEL_BANDS] = the log mel spectrogram of n samples in -1..1. LS_EINVAL: fewer
 * than MEL_MIN_SAMPLES, or more than MEL_MAX_FRAMES frames. */
LS_MUST_USE ls_status mel_compute(mel_transform *m, const float *samples, size_t n, float *mel,
                                  speech_error *error);

/*
 * *out = the distance of two log mel spectrograms with dynamic time warping (Sakoe and Chiba 1978,
 * symmetric form without slope constraint): the mean over the best path, whose diagonal steps count
 * twice, of the mean absolute difference of the bands. 0 for equal ones, also at another speed.
 * Takes frames_a * frames_b steps. LS_EINVAL: no frames, or more than MEL_MAX_FRAMES.
 */
LS_MUST_USE ls_status mel_distance(const float *a, size_t frames_a, const float *b, size_t frames_b,
                                   double *out, speech_error *error);

/*
 * samples[mel_samples(frames)] = a sound with this log mel spectrogram. Magnitudes are the
 * pseudo-inverse of the filters applied to exp(mel), negative ones 0. Phases are those of
 * Griffin-Lim with momentum 0.99 (Griffin and Lim 1984; Perraudin, Balazs and Sondergaard 2013),
 * which starts from random phases of `seed`; NVIDIA's number of iterations is 60.
 * LS_EINVAL: fewer than MEL_MIN_FRAMES or more than MEL_MAX_FRAMES frames, or a value not finite or
 * above 20.
 */
LS_MUST_USE ls_status mel_invert(mel_transform *m, const float *mel, size_t frames, int iterations,
                                 uint64_t seed, float *samples, speech_error *error);

#endif
