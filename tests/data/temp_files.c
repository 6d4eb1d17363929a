/* SPDX-License-Identifier: Apache-2.0 */
/* temp_files.c - makes the folder of a test and the files in it. */
#include "data/temp_files.h"

#include "base/unit.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

void temp_folder_create(temp_folder *t)
{
    const char *base = getenv("TMPDIR");

    (void)snprintf(t->path, sizeof(t->path), "%s/lockstep-test-XXXXXX",
                   base != NULL ? base : "/tmp");
    assert_non_null(mkdtemp(t->path));
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)info;
    (void)type;
    (void)where;
    return remove(path);
}

void temp_folder_remove(temp_folder *t)
{
    assert_int_equal(nftw(t->path, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

void temp_folder_make(const temp_folder *t, const char *name)
{
    char path[TEMP_PATH_BYTES];

    assert_int_equal(mkdir(temp_path(t, name, path), 0777), 0);
}

const char *temp_path(const temp_folder *t, const char *name, char buf[TEMP_PATH_BYTES])
{
    (void)snprintf(buf, TEMP_PATH_BYTES, "%s/%s", t->path, name);
    return buf;
}

void temp_write(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    if (bytes > 0)
        assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

unsigned char *temp_read(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    unsigned char *data;
    long size;

    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    size = ftell(file);
    assert_true(size >= 0);
    rewind(file);
    data = malloc((size_t)size + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, (size_t)size, file), size);
    (void)fclose(file);
    *bytes = (size_t)size;
    return data;
}

void temp_drop_digests(void *file, size_t bytes)
{
    static const char key[] = "lockstep.blake2b";
    char *end = (char *)file + bytes;

    for (char *at = file; (at = memmem(at, (size_t)(end - at), key, sizeof(key) - 1)) != NULL; at++)
        at[sizeof(key) - 2] = 'x';
}
