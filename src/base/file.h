/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file.h - whole reads, atomic writes, and facts about processes. Every error names the path and,
 * where there is one, the offset.
 */
#ifndef LS_BASE_FILE_H
#define LS_BASE_FILE_H

#include "base/status.h"

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

/* The state letter of /proc/PID/stat: R S D T Z ..., or 0 when there is no such process. */
char file_process_state(pid_t pid);
/* "running", "stopped", "waiting for I/O", "asleep", "dead". */
const char *file_process_state_text(char state);

#endif
