/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_file.h - a plan in a file of the user's cache folder. dnn_cache.c reads and writes one file
 * for each graph; several processes may do so at once.
 *
 * Form: "lockstep plan 1\n", the key's length, the card's and the plan's (uint64_t, little-endian),
 * a hash of all that follows, then key, card and plan.
 */
#ifndef LS_TENSOR_DEVICES_CUDA_DNN_PLAN_FILE_H
#define LS_TENSOR_DEVICES_CUDA_DNN_PLAN_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of a plan's text, and files of the folder, at most. */
#define PLAN_FILE_BYTES_MOST ((size_t)4 << 20)
#define PLAN_FILES_MOST      8192

typedef struct plan_file {
    const char *folder;
    const void *key;
    size_t key_bytes;
    const char *card;
} plan_file;

/* FNV-1a, continued from `seed`. */
uint64_t plan_hash(const void *data, size_t bytes, uint64_t seed);

/* False when there is no valid file of this user with this key and card. *file is the block to free
 * through the host's table; *text points into it. */
bool plan_file_read(const plan_file *f, char **file, const char **text, size_t *bytes);

/* Replaces the file as a whole, or leaves it: a full disk or folder loses nothing but time. */
void plan_file_write(const plan_file *f, const char *text, size_t bytes);

#endif
