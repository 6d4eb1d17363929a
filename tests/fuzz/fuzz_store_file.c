/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_store_file.c - arbitrary content of a store's file while a process has it open. The first
 * byte selects whether checksums are corrected.
 */
#include "fuzz/fuzz.h"

#include <lockstep/store.h>

#include "base/rng.h"
#include "base/text.h"
#include "net/wire.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void must(int is_true)
{
    if (!is_true)
        __builtin_trap();
}

/* A path of this process only. */
static void make_path(char *path, size_t n)
{
    int fd;

    text_format(path, n, "/tmp/lockstep-fuzz-XXXXXX");
    fd = mkstemp(path);
    must(fd >= 0);
    close(fd);
}

/* Gives whole records the checksum of their body, so that the parser behind the checksum is
 * reached. */
static void fix_checksums(uint8_t *data, size_t size)
{
    size_t at = 16;

    while (at + 8 < size) {
        const size_t bytes = wire_get_u32(data + at);
        uint64_t hash;

        if (bytes > size - at - 8)
            return;
        hash = ls_hash_bytes(data + at + 8, bytes, 0);
        wire_put_u32(data + at + 4, (uint32_t)(hash ^ hash >> 32));
        at += 8 + bytes;
    }
}

static void write_content(const char *path, const uint8_t *data, size_t size)
{
    uint8_t content[8192];
    const int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);

    memcpy(content, data + 1, size - 1);
    if (data[0] % 4 != 0)
        fix_checksums(content, size - 1);
    must(fd >= 0 && write(fd, content, size - 1) == (ssize_t)(size - 1));
    close(fd);
}

static void use(ls_store *s)
{
    int64_t count = 0;
    int64_t sum = 0;
    void *value = NULL;

    if (ls_store_count(s, &count) != LS_OK || ls_store_add(s, "counter", 1, &sum) != LS_OK)
        return;
    must(ls_store_get(s, "counter", 0, &value, NULL) == LS_OK);
    ls_store_free(value);
    must(ls_store_set(s, "k", "v", 1) == LS_OK);
    must(ls_store_delete(s, "k", NULL) == LS_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char path[64];
    char url[80];
    ls_store *alive;
    ls_store *s = NULL;

    if (size < 1 || size > 8192)
        return 0;
    if (path[0] == 0)
        make_path(path, sizeof(path));
    text_format(url, sizeof(url), "file://%s", path);
    must(ls_store_open(url, NULL, &alive) == LS_OK);
    write_content(path, data, size);
    if (ls_store_open(url, NULL, &s) == LS_OK)
        use(s);
    ls_store_close(s);
    ls_store_close(alive); // removes the file
    return 0;
}
