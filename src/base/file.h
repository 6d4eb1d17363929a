/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file.h - whole reads, atomic writes, folders. Errors name the path and, where there is one, the
 * offset.
 */
#ifndef LS_BASE_FILE_H
#define LS_BASE_FILE_H

#include "base/status.h"

#include <dirent.h>
#include <stdbool.h>
#include <sys/types.h>

/* Reads a whole regular file of at most max_bytes. *out has an extra 0 byte at its end; free it
 * with ls_free(). */
LS_MUST_USE ls_status file_read(const char *path, size_t max_bytes, char **out, size_t *out_bytes);

/* The same for a text that people may have edited: without the byte order mark in front of it. */
LS_MUST_USE ls_status file_read_text(const char *path, size_t max_bytes, char **out,
                                     size_t *out_bytes);

/* As file_read_text(), for a file that the user has named: also a pipe or a terminal (/dev/stdin),
 * and then blocks until its writers have closed it. */
LS_MUST_USE ls_status file_read_input(const char *path, size_t max_bytes, char **out,
                                      size_t *out_bytes);

/* Opens a regular file to read; *bytes is its size. Never waits for the writer of a pipe. */
LS_MUST_USE ls_status file_open_regular(const char *path, int *fd, uint64_t *bytes);

/* Transfers exactly `bytes`; retries EINTR and short counts. LS_EFORMAT when the file ends
 * early. */
LS_MUST_USE ls_status file_pread_all(int fd, const char *path, void *dst, size_t bytes,
                                     uint64_t offset);
LS_MUST_USE ls_status file_write_all(int fd, const char *path, const void *src, size_t bytes);

/* A file that appears whole or not at all: writes PATH.tmp, then fsync, rename, fsync of the
 * folder. Replaces the PATH.tmp of a killed process of this user; LS_EIO for anything else of that
 * name. */
typedef struct file_atomic {
    int fd;
    char path[4096];
    char tmp[4104];
} file_atomic;
LS_MUST_USE ls_status file_atomic_begin(file_atomic *f, const char *path);
LS_MUST_USE ls_status file_atomic_commit(file_atomic *f); /* on failure the old file stays */
void file_atomic_cancel(file_atomic *f); /* removes PATH.tmp; harmless after commit */
/* Whether file_atomic_begin() would succeed now; leaves nothing behind. */
LS_MUST_USE ls_status file_atomic_probe(const char *path);
/* Writes all of a file in this way. */
LS_MUST_USE ls_status file_replace(const char *path, const void *data, size_t bytes);

/* Renames a regular file at `path` that is not empty, so that writing `path` does not lose it:
 * NAME.EXT becomes NAME.earlier.EXT or, where that exists, NAME.earlier2.EXT and so on. `renamed`
 * gets the new path, "" where there is no such file. */
enum { FILE_EARLIER_BYTES = 4096, FILE_EARLIER_WORD_BYTES = 24 };
LS_MUST_USE ls_status file_keep_earlier(const char *path, char renamed[FILE_EARLIER_BYTES]);
/* The i-th of these words, from 1. */
const char *file_earlier_word(int i, char word[FILE_EARLIER_WORD_BYTES]);
/* Whether there is anything at `path`, also a link to nothing. */
bool file_exists(const char *path);

/* Closes *fd if it is >= 0, and sets it to -1. */
void file_close(int *fd);

/* Reads up to `bytes` or to the end of the file; the number of bytes read, or -1 with errno. */
ssize_t file_read_fd(int fd, void *dst, size_t bytes);

/* Reads the beginning of a small file, at most n - 1 bytes, and terminates it. Returns the number
 * of bytes, or -1. For files of /proc and /sys; sets no error text. */
ssize_t file_read_start(const char *path, char *buf, size_t n);

/* The next entry of a folder, NULL at its end. One thread reads a stream. */
const struct dirent *file_next_entry(DIR *folder);
/* The next entry whose name is a number (/proc, /proc/PID/fd): that number, -1 at the end. */
int file_next_number(DIR *folder);

#endif
