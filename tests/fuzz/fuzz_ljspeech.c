/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_ljspeech.c - metadata.csv of a set whose only wav file is wavs/a.wav, and each of its texts
 * through the text front end.
 */
#include "fuzz/fuzz.h"

#include "models/speech/ljspeech.h"
#include "models/speech/text.h"
#include "models/speech/wav.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/fuzz_ljspeech.XXXXXX";
static char metadata[64];
static char sound[64];

static void remove_folder(void)
{
    char wavs[64];

    (void)unlink(metadata);
    (void)unlink(sound);
    (void)snprintf(wavs, sizeof(wavs), "%s/wavs", folder);
    (void)rmdir(wavs);
    (void)rmdir(folder);
}

static void make_folder(void)
{
    static const float zeros[600];
    char wavs[64];

    if (metadata[0] != 0)
        return;
    if (mkdtemp(folder) == NULL)
        __builtin_trap();
    (void)snprintf(metadata, sizeof(metadata), "%s/metadata.csv", folder);
    (void)snprintf(wavs, sizeof(wavs), "%s/wavs", folder);
    (void)snprintf(sound, sizeof(sound), "%s/wavs/a.wav", folder);
    if (mkdir(wavs, 0700) != 0 || wav_write(sound, zeros, 600, NULL) != LS_OK)
        __builtin_trap();
    (void)atexit(remove_folder);
}

static void encode(const char *text)
{
    static int64_t ids[TEXT_MAX_IDS];
    speech_error error;
    size_t n;

    if (text_to_ids(text, ids, TEXT_MAX_IDS, &n, NULL, &error) != LS_OK)
        return;
    for (size_t i = 0; i < n; i++)
        if (ids[i] <= TEXT_PADDING || ids[i] >= TEXT_SYMBOLS)
            __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ljspeech *set;
    FILE *file;

    make_folder();
    file = fopen(metadata, "wb");
    if (file == NULL || fwrite(data, 1, size, file) != size || fclose(file) != 0)
        __builtin_trap();
    if (ljspeech_open(folder, &set, NULL) != LS_OK)
        return 0;
    for (size_t i = 0; i < ljspeech_count(set); i++) {
        encode(ljspeech_raw_text(set, i));
        encode(ljspeech_text(set, i));
    }
    ljspeech_close(set);
    return 0;
}
