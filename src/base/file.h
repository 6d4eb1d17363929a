/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file.h - whole reads, atomic writes, and folders. Every error names the path and,
 * where there is one, the offset.
 */
#ifndef LS_BASE_FILE_H
#define LS_BASE_FILE_H

#include "base/status.h"

#include <dirent.h>
#include <stdbool.h>
#include <sys/types.h>

/* Reads a whole regular file of at most max_bytes; *out is terminated with an extra 0 byte and is
 * freed by the caller with ls_free(). */
LS_MUST_USE ls_status file_read(const char *path, size_t max_bytes, char **out, size_t *out_bytes);

/* Reads/writes exactly `bytes` at `offset`; EINTR and short counts are handled. LS_EFORMAT when the
 * file ends early. */
LS_MUST_USE ls_status file_pread_all(int fd, const char *path, void *dst, size_t bytes,
                                     uint64_t offset);
LS_MUST_USE ls_status file_write_all(int fd, const char *path, const void *src, size_t bytes);

/* A file that appears whole or not at all: written to PATH.tmp, then fsync, rename, fsync of the
 * folder. A PATH.tmp left by a killed process of this user is replaced; LS_EIO when something else
 * is there. */
typedef struct file_atomic {
    int fd;
    char path[4096];
    char tmp[4104];
} file_atomic;
LS_MUST_USE ls_status file_atomic_begin(file_atomic *f, const char *path);
LS_MUST_USE ls_status file_atomic_commit(file_atomic *f); /* on failure the old file stands */
void file_atomic_cancel(file_atomic *f);                  /* removes the .tmp; safe after commit */
/* Whether file_atomic_begin() works for this path now; leaves nothing behind. */
LS_MUST_USE ls_status file_atomic_probe(const char *path);

/* Closes if >= 0 and sets to -1. */
void file_close(int *fd);

/* Reads the beginning of a small file, at most n - 1 bytes, and terminates it. Returns the number of
 * bytes, or -1. For files of /proc and /sys; sets no error text. */
ssize_t file_read_start(const char *path, char *buf, size_t n);

/* The next entry of a folder, NULL at its end. One thread reads a stream. */
const struct dirent *file_next_entry(DIR *folder);
/* The next entry whose name is a number (/proc, /proc/PID/fd): that number, -1 at the end. */
int file_next_number(DIR *folder);

#endif
