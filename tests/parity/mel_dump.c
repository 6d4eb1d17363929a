/* SPDX-License-Identifier: Apache-2.0 */
/* mel_dump.c - mel_dump WAV: writes the log mel spectrogram (T,80) as float32 for mel_parity.py. */
#include "models/speech/mel.h"
#include "models/speech/wav.h"

#include <stdio.h>
#include <stdlib.h>

static int dump(const float *samples, size_t n, speech_error *error)
{
    const size_t values = mel_frames(n) * MEL_BANDS;
    float *mel = calloc(values, sizeof(*mel));
    mel_transform *transform = NULL;
    int rc = 1;

    if (mel != NULL && mel_create(&transform, error) == LS_OK &&
        mel_compute(transform, samples, n, mel, error) == LS_OK &&
        fwrite(mel, sizeof(*mel), values, stdout) == values)
        rc = 0;
    mel_destroy(transform);
    free(mel);
    return rc;
}

int main(int argc, char **argv)
{
    speech_error error = {""};
    float *samples = NULL;
    size_t n;
    int rc = 1;

    if (argc == 2 && wav_read(argv[1], &samples, &n, &error) == LS_OK)
        rc = dump(samples, n, &error);
    free(samples);
    if (rc != 0)
        (void)fprintf(stderr, "mel_dump: %s\n", error.text);
    return rc;
}
