/* SPDX-License-Identifier: Apache-2.0 */
/* memory_file.h - files without a name, for memory that processes share by a descriptor. */
#ifndef LS_HOST_MEMORY_FILE_H
#define LS_HOST_MEMORY_FILE_H

#include "base/status.h"

#include <stdbool.h>

/*
 * A file of `bytes` zeros, CLOEXEC: a memfd of this name, which takes memory where it is written.
 * Where memfd_create() is refused (system call filters of containers): a deleted file in /dev/shm,
 * in TMPDIR or in /tmp, the first that has space; all its space is allocated at once, so that
 * writing to it never fails. The error names the last folder.
 */
LS_MUST_USE ls_status memory_file_make(const char *name, size_t bytes, int *fd);

/* Adds F_SEAL_* to a memfd, and nothing to a deleted file, which has no seals. */
LS_MUST_USE ls_status memory_file_seal(int fd, int seals);

/* Whether a received file cannot become shorter: a memfd with F_SEAL_SHRINK, or a deleted file of
 * this user that others cannot open. */
bool memory_file_stays(int fd);

#endif
