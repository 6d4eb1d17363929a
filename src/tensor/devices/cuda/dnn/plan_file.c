/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_file.c - reads and writes plans in the user's cache folder, for dnn_cache.c. What is read is
 * checked as hostile input: owner, permissions, sizes, hash, key and card.
 */
#include "tensor/devices/cuda/dnn/plan_file.h"

#include "tensor/devices/cuda/dnn/dnn_cache.h"
#include "tensor/devices/cuda/runtime/cuda_internal.h"

#include <dirent.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char magic[16] = "lockstep plan 1\n"; // without the terminator

/* Offsets of the header's fields. */
enum {
    AT_KEY_BYTES = sizeof(magic),
    AT_CARD_BYTES = AT_KEY_BYTES + 8,
    AT_TEXT_BYTES = AT_CARD_BYTES + 8,
    AT_HASH = AT_TEXT_BYTES + 8,
    HEADER_BYTES = AT_HASH + 8
};

uint64_t plan_hash(const void *data, size_t bytes, uint64_t seed)
{
    const unsigned char *p = data;
    uint64_t hash = 14695981039346656037u ^ seed;

    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ p[i]) * 1099511628211u;
    return hash;
}

static void put_u64(char *at, uint64_t v)
{
    for (int i = 0; i < 8; i++)
        at[i] = (char)(v >> (8 * i) & 0xff);
}

static uint64_t get_u64(const char *at)
{
    uint64_t v = 0;

    for (int i = 0; i < 8; i++)
        v |= (uint64_t)(unsigned char)at[i] << (8 * i);
    return v;
}

/* False when the path is too long. */
static bool path_of(const plan_file *f, char *buf, size_t n)
{
    const uint64_t key = plan_hash(f->key, f->key_bytes, 0);
    const uint64_t card = plan_hash(f->card, strlen(f->card), key);
    const int used = snprintf(buf, n, "%s/%016" PRIx64 "%016" PRIx64 ".plan", f->folder, key, card);

    return used > 0 && (size_t)used < n;
}

/* Whether only this user can have written what is at `path`. */
static bool is_own(const char *path, mode_t type)
{
    struct stat info;

    return lstat(path, &info) == 0 && (info.st_mode & S_IFMT) == type && info.st_uid == geteuid() &&
           (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

static bool is_valid(const plan_file *f, const char *file, size_t bytes)
{
    const size_t card_bytes = strlen(f->card);

    if (bytes < HEADER_BYTES + f->key_bytes + card_bytes ||
        memcmp(file, magic, sizeof(magic)) != 0 || get_u64(file + AT_KEY_BYTES) != f->key_bytes ||
        get_u64(file + AT_CARD_BYTES) != card_bytes ||
        get_u64(file + AT_TEXT_BYTES) != bytes - HEADER_BYTES - f->key_bytes - card_bytes)
        return false;
    return get_u64(file + AT_HASH) == plan_hash(file + HEADER_BYTES, bytes - HEADER_BYTES, 0) &&
           memcmp(file + HEADER_BYTES, f->key, f->key_bytes) == 0 &&
           memcmp(file + HEADER_BYTES + f->key_bytes, f->card, card_bytes) == 0;
}

bool plan_file_read(const plan_file *f, char **file, const char **text, size_t *bytes)
{
    const size_t before = HEADER_BYTES + f->key_bytes + strlen(f->card);
    char path[PATH_MAX];
    size_t n;

    if (!path_of(f, path, sizeof(path)) || !is_own(path, S_IFREG) ||
        cu_host->file_read(path, PLAN_FILE_BYTES_MOST, file, &n) != LS_OK)
        return false;
    if (!is_valid(f, *file, n)) {
        cu_host->free(*file);
        return false;
    }
    *text = *file + before;
    *bytes = n - before;
    return true;
}

/* Whether the folder has space for one more file. */
static bool has_space(const char *folder)
{
    DIR *d = opendir(folder);
    size_t n = 0;

    if (d == NULL)
        return false;
    while (readdir(d) != NULL) // NOLINT(concurrency-mt-unsafe): one thread reads a stream
        n++;
    (void)closedir(d);
    return n < PLAN_FILES_MOST;
}

void plan_file_write(const plan_file *f, const char *text, size_t bytes)
{
    const size_t card_bytes = strlen(f->card);
    const size_t all = HEADER_BYTES + f->key_bytes + card_bytes + bytes;
    char path[PATH_MAX];
    char *file;
    char *at;

    if (all > PLAN_FILE_BYTES_MOST || !path_of(f, path, sizeof(path)) || !has_space(f->folder))
        return;
    file = cu_host->alloc(all, 1);
    if (file == NULL)
        return;
    memcpy(file, magic, sizeof(magic));
    put_u64(file + AT_KEY_BYTES, f->key_bytes);
    put_u64(file + AT_CARD_BYTES, card_bytes);
    put_u64(file + AT_TEXT_BYTES, bytes);
    at = file + HEADER_BYTES;
    memcpy(at, f->key, f->key_bytes);
    memcpy(at + f->key_bytes, f->card, card_bytes);
    memcpy(at + f->key_bytes + card_bytes, text, bytes);
    put_u64(file + AT_HASH, plan_hash(at, all - HEADER_BYTES, 0));
    // Fails while another process writes this file: that one stores an equally good choice.
    (void)cu_host->file_replace(path, file, all);
    cu_host->free(file);
}

/* --- the folder --- */

/* Creates it for this user if it does not exist. */
static bool make_own(const char *folder)
{
    (void)mkdir(folder, 0700);
    return is_own(folder, S_IFDIR);
}

void dnn_cache_folder(char *buf, size_t n)
{
    const char *cache = getenv("XDG_CACHE_HOME"); // NOLINT(concurrency-mt-unsafe): never set
    const char *home = getenv("HOME");            // NOLINT(concurrency-mt-unsafe): never set
    bool ok = false;
    char base[PATH_MAX];

    buf[0] = '\0';
    // A relative path is invalid by the XDG specification.
    if (cache != NULL && cache[0] == '/')
        ok = snprintf(base, sizeof(base), "%s", cache) < (int)sizeof(base);
    else if (home != NULL && home[0] == '/')
        ok = snprintf(base, sizeof(base), "%s/.cache", home) < (int)sizeof(base);
    if (!ok)
        return;
    (void)mkdir(base, 0700); // may exist, also as a link
    if (snprintf(buf, n, "%s/lockstep", base) >= (int)n || !make_own(buf) ||
        snprintf(buf, n, "%s/lockstep/plans", base) >= (int)n || !make_own(buf))
        buf[0] = '\0';
}
