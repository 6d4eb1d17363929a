/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stdin_source.h - the launcher's own stdin, read as far as the receiver has granted bytes.
 *
 * Reading neither blocks nor stops the process: a pipe is read without waiting, a file in pieces
 * between other events, a terminal only while the process is in its foreground. SIGTTIN must be
 * ignored.
 */
#ifndef LS_LAUNCH_OUTPUT_STDIN_SOURCE_H
#define LS_LAUNCH_OUTPUT_STDIN_SOURCE_H

#include "net/poller.h"

#include <stdbool.h>

#define STDIN_PIECE_MOST 8192 /* bytes in one call of bytes() */
#define STDIN_LINE_MOST  4096 /* of a terminal: it is read when a whole line is granted */

typedef struct stdin_source stdin_source;

typedef struct stdin_source_options {
    int fd;                   /* stays the caller's */
    bool continues_after_end; /* of a terminal: input after its end (Ctrl-D) is read, too */
    void *self;
    /* Receives what was read; n 0: the end. Never called from within a call of this module. */
    void (*bytes)(void *self, const char *bytes, size_t n);
} stdin_source_options;

/* Reads nothing before the first grant. */
LS_MUST_USE ls_status stdin_source_open(poller *p, const stdin_source_options *opt,
                                        stdin_source **out);
void stdin_source_close(stdin_source *s); /* NULL is allowed */

/* Allows `more` bytes. After the end of stdin the end is reported again. */
void stdin_source_grant(stdin_source *s, size_t more);
/* Takes back what was granted. NULL is allowed. */
void stdin_source_revoke(stdin_source *s);

#endif
