/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_file.c - files in memory, for targets whose parser reads a path. */
#include "fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static void must(int ok, const char *what)
{
    if (ok)
        return;
    perror(what);
    abort();
}

void fuzz_file_open(fuzz_file *f, const void *data, size_t size)
{
    const char *p = data;

    f->fd = memfd_create("fuzz", MFD_CLOEXEC);
    must(f->fd >= 0, "memfd_create");
    while (size > 0) {
        const ssize_t put = write(f->fd, p, size);

        must(put > 0, "write");
        p += put;
        size -= (size_t)put;
    }
    (void)snprintf(f->path, sizeof(f->path), "/proc/self/fd/%d", f->fd);
}

void fuzz_file_close(fuzz_file *f)
{
    (void)close(f->fd);
}
