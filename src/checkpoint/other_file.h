/* SPDX-License-Identifier: Apache-2.0 */
/* other_file.h - files that a download leaves instead of weights. */
#ifndef LS_CHECKPOINT_OTHER_FILE_H
#define LS_CHECKPOINT_OTHER_FILE_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

/* LS_EFORMAT names a pointer of Git LFS, an HTML page or other text, and what to do. */
LS_MUST_USE ls_status other_file_refuse(int fd, const char *path, uint64_t file_bytes);

#endif
