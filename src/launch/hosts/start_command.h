/* SPDX-License-Identifier: Apache-2.0 */
/*
 * start_command.h - the command lines that start an agent on another host, and what their failures mean.
 *
 * What runs there is one fixed script for /bin/sh: it becomes this very tool if it is there in this version, by its path here or by
 * PATH; else it says so, takes the travelling agent (one static program) through stdin into a file that has no name any more,
 * and becomes that. So neither the key nor anything of the job is in a command line, and nothing stays on the host's disk.
 */
#ifndef LS_LAUNCH_START_COMMAND_H
#define LS_LAUNCH_START_COMMAND_H

#include "base/status.h"

#include <stdbool.h>

#define START_SEND_AGENT                                                                           \
    "LOCKSTEP-WANTED" /* the script's word for: send the agent. Behind it `uname -m` */

typedef enum start_way { START_SSH, START_SLURM } start_way;

typedef struct start_options {
    start_way way;
    const char *
        program; /* in the place of ssh or srun, with arguments that are split at blanks; NULL: that one */
    int port;         /* ssh's; 0: its own idea */
    const char *tool; /* this tool's path, to be looked for on the host; NULL: only PATH */
} start_options;

/* A NULL-terminated array, freed by start_command_free(). */
LS_MUST_USE ls_status start_command_make(const start_options *opt, const char *host, char ***out);
void start_command_free(char **argv); /* NULL is allowed */

/* Whether the last line that ssh printed tells of an sshd that had too many connections at once: worth another try. */
bool start_may_retry(const char *last_line);

/* "ssh-copy-id b lets you in without a password": what to do about ssh's last line; "" when nothing is known of it. */
const char *start_fix(start_way way, const char *host, const char *last_line, char *buf, size_t n);

/* Where the travelling agent lies, seen from this tool. LS_ENOTFOUND: this build has none. */
LS_MUST_USE ls_status start_find_agent_binary(char *path, size_t n);

#endif
