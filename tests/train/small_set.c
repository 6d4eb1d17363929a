/* SPDX-License-Identifier: Apache-2.0 */
/* small_set.c - writes a tiny data set in MNIST's format. */
#include "train/small_set.h"

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void put32(FILE *f, uint32_t v)
{
    const unsigned char bytes[4] = {(unsigned char)(v >> 24), (unsigned char)(v >> 16),
                                    (unsigned char)(v >> 8), (unsigned char)v};

    fwrite(bytes, 1, 4, f);
}

static FILE *open_in(const char *dir, const char *split, const char *kind)
{
    char path[256];

    snprintf(path, sizeof(path), "%s/%s-%s-ubyte", dir, split, kind);
    return fopen(path, "wb");
}

static void put_image(FILE *f, int label, uint32_t *noise)
{
    for (int i = 0; i < SMALL_SIDE * SMALL_SIDE; i++) {
        const int quadrant =
            (i / SMALL_SIDE >= SMALL_SIDE / 2) * 2 + (i % SMALL_SIDE >= SMALL_SIDE / 2);
        *noise = *noise * 1664525U + 1013904223U;
        fputc((quadrant == label ? 150 : 20) + (int)(*noise >> 25) / 2, f);
    }
}

static void put_split(const char *dir, const char *split, int count, uint32_t seed)
{
    FILE *images = open_in(dir, split, "images-idx3");
    FILE *labels = open_in(dir, split, "labels-idx1");

    if (images == NULL || labels == NULL)
        abort();
    put32(images, 0x803);
    put32(images, (uint32_t)count);
    put32(images, SMALL_SIDE);
    put32(images, SMALL_SIDE);
    put32(labels, 0x801);
    put32(labels, (uint32_t)count);
    for (int i = 0; i < count; i++) {
        seed = seed * 1664525U + 1013904223U;
        const int label = (int)(seed >> 30);
        put_image(images, label, &seed);
        fputc(label, labels);
    }
    fclose(images);
    fclose(labels);
}

void small_set_make(char *dir, size_t n)
{
    snprintf(dir, n, "/tmp/lockstep-small-XXXXXX");
    if (mkdtemp(dir) == NULL)
        abort();
    put_split(dir, "train", SMALL_TRAIN, 1);
    put_split(dir, "t10k", SMALL_TEST, 2);
}

void small_set_resize(const char *dir, const char *split, int count)
{
    put_split(dir, split, count, 1);
}

void small_set_remove(const char *dir)
{
    DIR *d = opendir(dir);
    const struct dirent *entry;

    while (d != NULL && (entry = readdir(d)) != NULL) {
        char path[512];
        snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
        unlink(path);
    }
    if (d != NULL)
        closedir(d);
    rmdir(dir);
}
