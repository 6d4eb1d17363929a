/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launch_request.h - the protocol between the starter of an agent on another host (starter.h) and
 * that agent, over its stdin and stdout.
 *
 *     agent -> starter   one line: "LOCKSTEP-AGENT 5 VERSION CORES", after output of a shell
 *     starter -> agent   REMOTE_LAUNCH_REQUEST: the job's key, its head's addresses, the program
 *     agent -> starter   REMOTE_OUTPUT, REMOTE_FAILURE_LINE, REMOTE_NOTE, REMOTE_FAILED, until the
 *                        job is over
 *     agent -> starter   REMOTE_WINDOW: the starter may send so many more bytes for rank 0
 *     starter -> agent   REMOTE_INPUT, within the window; REMOTE_SIZE
 *
 * The end of the agent's stdin means that the starter has ended, and the job with it.
 */
#ifndef LS_LAUNCH_SPEC_LAUNCH_REQUEST_H
#define LS_LAUNCH_SPEC_LAUNCH_REQUEST_H

#include "host/pseudo_terminal.h"
#include "launch/spec/job_spec.h"
#include "net/address.h"
#include "net/auth/dial.h"
#include "net/auth/seal.h"
#include "net/key.h"
#include "net/messages/frame.h"
#include "net/messages/wire_fields.h"
#include "net/socket.h"

#include <stdbool.h>

#define LAUNCH_REQUEST_VERSION     5
#define REMOTE_GREETING            "LOCKSTEP-AGENT"
#define LAUNCH_REQUEST_BODY_MAX    ((size_t)16 * 1024 * 1024)
#define LAUNCH_REQUEST_STRINGS_MAX 65536 /* arguments, and variables */
#define REMOTE_BODY_MAX            ((size_t)64 * 1024)
#define REMOTE_OUTPUT_MOST         ((size_t)32 * 1024)  /* bytes in one REMOTE_OUTPUT */
#define REMOTE_INPUT_WINDOW        ((size_t)256 * 1024) /* bytes under way to rank 0 at most */

typedef enum remote_message {
    REMOTE_LAUNCH_REQUEST = 1,
    REMOTE_INPUT,        /* bytes for rank 0's stdin; none: its end */
    REMOTE_SIZE,         /* rows u32, columns u32: of the ranks' terminals */
    REMOTE_OUTPUT = 16,  /* rank u32, stream u8 (0 stdout, 1 stderr), bytes; none: its end */
    REMOTE_FAILURE_LINE, /* rank u32, hash u64: it will print this line as its failure */
    REMOTE_NOTE,         /* text for users */
    REMOTE_FAILED,       /* text: why the agent failed */
    REMOTE_WINDOW,       /* bytes u32: rank 0's stdin takes so many more */
} remote_message;

typedef struct launch_request {
    net_key key;
    net_address heads[DIAL_ADDRESSES_MAX]; /* addresses of the head, all to be tried */
    int n_heads;
    int node; /* this one's number */
    int n_nodes;
    int n_ranks; /* on it */
    uint64_t run_hash;
    const char *host;   /* as the user names it; NULL: the machine's name */
    const char *folder; /* working folder */
    char **env;         /* "NAME=VALUE" to set, NULL-terminated */
    job_spec job;
    net_security security;
    bool terminal;       /* the job's stderr is a terminal */
    bool input_terminal; /* the job's stdin is a terminal */
    pty_size size;       /* of the ranks' terminals, with job.pty */
    void *memory;        /* the decoded message; the texts point into it */
    size_t memory_bytes;
} launch_request;

void launch_request_write(wire_writer *w, const launch_request *o);

/* LS_EPROTO: not a launch request, or of another version; or names the field that is bad. */
LS_MUST_USE ls_status launch_request_read(const frame *f, launch_request *out);
void launch_request_free(launch_request *o); /* also wipes the key */

/*
 * Sets o->env: the exports, and with_own the variables of this process that other machines need.
 * The texts are borrowed, the caller frees the array with ls_free(). LS_EINVAL: there are too many.
 */
LS_MUST_USE ls_status launch_request_list_env(char *const *exports, int n_exports, bool with_own,
                                              launch_request *o);

/* REMOTE_OUTPUT's body; *bytes points into the frame. */
LS_MUST_USE ls_status remote_read_output(const frame *f, int *rank, int *stream, const char **bytes,
                                         size_t *n);

/* REMOTE_FAILURE_LINE's body. */
LS_MUST_USE ls_status remote_read_failure_line(const frame *f, int *rank, uint64_t *hash);

/* The bodies of REMOTE_SIZE and REMOTE_WINDOW. */
WIRE_FUNCTIONS(remote_write_size, remote_read_size, pty_size)
LS_MUST_USE ls_status remote_read_window(const frame *f, size_t *out);

/* Writes the greeting with its newline; reads one. False: the line is not a greeting. */
const char *remote_greeting(char *buf, size_t n, int cores);
bool remote_read_greeting(const char *line, char *version, size_t n, int *cores);

#endif
