/* SPDX-License-Identifier: Apache-2.0 */
/* root_folder.c - see root_folder.h. */
#include "harness/root_folder.h"

#include "base/text.h"
#include "base/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 512 };

void root_folder_make(char root[ROOT_FOLDER_BYTES])
{
    text_format(root, ROOT_FOLDER_BYTES, "/tmp/lockstep-root-XXXXXX");
    assert_non_null(mkdtemp(root));
}

/* The folders of the path exist then. */
static void find_path(const char *root, const char *path, char full[PATH_BYTES])
{
    text_format(full, PATH_BYTES, "%s/%s", root, path);
    for (char *at = full + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        assert_true(mkdir(full, 0755) == 0 || errno == EEXIST);
        *at = '/';
    }
}

void root_folder_put_bytes(const char *root, const char *path, const char *bytes, size_t n)
{
    char full[PATH_BYTES];
    int fd;

    find_path(root, path, full);
    fd = open(full, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, n), (ssize_t)n);
    (void)close(fd);
}

void root_folder_put(const char *root, const char *path, const char *text)
{
    root_folder_put_bytes(root, path, text, strlen(text));
}

void root_folder_link(const char *root, const char *path, const char *to)
{
    char full[PATH_BYTES];

    find_path(root, path, full);
    (void)unlink(full);
    assert_int_equal(symlink(to, full), 0);
}

static int remove_one(const char *path, const struct stat *facts, int kind, struct FTW *place)
{
    LS_UNUSED(facts);
    LS_UNUSED(kind);
    LS_UNUSED(place);
    return remove(path);
}

void root_folder_remove(const char *root, const char *path)
{
    char full[PATH_BYTES];

    text_format(full, PATH_BYTES, "%s/%s", root, path);
    assert_int_equal(nftw(full, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}
