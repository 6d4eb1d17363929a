/* SPDX-License-Identifier: Apache-2.0 */
/* small_folder.c - makes the folder of the small set for the tests of one program. */
#include "train/small_folder.h"

#include "base/unit.h"

#include "base/alloc.h"
#include "base/file.h"
#include "train/small_set.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

char small_dir[64];
char small_program[4096];

int small_dir_make(void **state)
{
    const ssize_t n = readlink("/proc/self/exe", small_program, sizeof(small_program) - 1);

    (void)state;
    small_set_make(small_dir, sizeof(small_dir));
    return n > 0 ? 0 : -1;
}

int small_dir_remove(void **state)
{
    (void)state;
    small_set_remove(small_dir);
    return 0;
}

const char *path_in(const char *name)
{
    static char paths[6][128];
    static int next;
    char *path = paths[next++ % 6];

    snprintf(path, sizeof(paths[0]), "%s/%s", small_dir, name);
    return path;
}

off_t size_of(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 ? info.st_size : -1;
}

char *text_of(const char *path)
{
    char *text;
    size_t bytes;

    assert_int_equal(file_read(path, 1 << 22, &text, &bytes), LS_OK);
    return text;
}

void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "we");

    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

void replace_in_file(const char *path, const void *from, const void *to, size_t n)
{
    char *bytes;
    char *at;
    size_t size;
    FILE *f;

    assert_int_equal(file_read(path, 1 << 20, &bytes, &size), LS_OK);
    at = memmem(bytes, size, from, n);
    assert_non_null(at);
    memcpy(at, to, n);
    f = fopen(path, "wbe");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
    ls_free(bytes);
}
