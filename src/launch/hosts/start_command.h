/* SPDX-License-Identifier: Apache-2.0 */
/*
 * start_command.h - the command lines that start an agent on another host, and the fixes for their
 * errors.
 *
 * A fixed script for /bin/sh runs there. It executes this tool if the host has this version, at the
 * same path or in PATH. Otherwise it requests the agent binary (one static program), reads it from
 * stdin into an unlinked file and executes that. So neither the key nor anything of the job is in a
 * command line, and no file stays on the host's disk.
 */
#ifndef LS_LAUNCH_HOSTS_START_COMMAND_H
#define LS_LAUNCH_HOSTS_START_COMMAND_H

#include "base/status.h"

#include <stdbool.h>

/* The script requests the agent binary; `uname -m` follows. */
#define START_SEND_AGENT "LOCKSTEP-WANTED"

typedef enum start_way { START_SSH, START_SLURM } start_way;

typedef struct start_options {
    start_way way;
    const char *program; /* instead of ssh or srun, with arguments, split at blanks; or NULL */
    int port;            /* of ssh; 0: its default */
    const char *tool;    /* this tool's path, tried first on the host; NULL: only PATH */
} start_options;

/* A NULL-terminated array, freed by start_command_free(). */
LS_MUST_USE ls_status start_command_make(const start_options *opt, const char *host, char ***out);
void start_command_free(char **argv); /* NULL is allowed */

/* Whether the last line of ssh means that sshd had too many connections at once: worth a retry. */
bool start_may_retry(const char *last_line);

/* The fix for the last line of ssh: "ssh-copy-id b (login without a password)". */
const char *start_fix(start_way way, const char *host, const char *last_line, char *buf, size_t n);

/* The path of the agent binary. LS_ENOTFOUND: this build has none. */
LS_MUST_USE ls_status start_find_agent_binary(char *path, size_t n);

#endif
