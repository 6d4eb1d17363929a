/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log_folder.h - the log files of one job, laid out as by torchrun:
 *
 *     DIR/<run_id>_<random>/attempt_<n>/<local_rank>/{stdout.log,stderr.log,error.json}
 *     DIR/<run_id>_<random>/attempt_<n>/{filtered_stdout.log,filtered_stderr.log}
 *
 * The folder with the random name is new and private to the user (0700, files 0600), so no other
 * user can have put a link into it.
 */
#ifndef LS_LAUNCH_OUTPUT_LOG_FOLDER_H
#define LS_LAUNCH_OUTPUT_LOG_FOLDER_H

#include "base/status.h"

typedef struct log_folder {
    int fd;          /* -1: no folder */
    char path[4096]; /* absolute, up to the random name */
} log_folder;

/* Makes DIR, where it is missing, and a new folder in it. dir NULL: in $TMPDIR or /tmp. */
LS_MUST_USE ls_status log_folder_create(const char *dir, const char *run_id, log_folder *out);
void log_folder_close(log_folder *f); /* the files stay */

/* Makes the folder of a rank. */
LS_MUST_USE ls_status log_folder_add_rank(const log_folder *f, unsigned attempt, int local_rank);

/* Instead of a rank: the files that all ranks of the attempt share, beside their folders. */
#define LOG_FOLDER_ALL_RANKS (-1)

/* The path of a rank's folder (file NULL) or of a file in it, cut to n bytes. */
const char *log_folder_path(const log_folder *f, unsigned attempt, int local_rank, const char *file,
                            char *buf, size_t n);

/* A file in the folder of a rank, to append to. A machine that was lost and is back in the job
 * continues those that it has written. */
LS_MUST_USE ls_status log_folder_create_file(const log_folder *f, unsigned attempt, int local_rank,
                                             const char *file, int *fd);

/* Opens a file that the rank may have written; LS_ENOTFOUND if it does not exist. */
LS_MUST_USE ls_status log_folder_open_file(const log_folder *f, unsigned attempt, int local_rank,
                                           const char *file, int *fd);

#endif
