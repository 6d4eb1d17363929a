/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stdin_source.h - the launcher's own stdin, read as far as somebody has room for it.
 *
 * It neither blocks nor stops the process: a pipe is read without waiting, a file in pieces between other events, and a terminal only while
 * the process is in its foreground. SIGTTIN must be ignored.
 */
#ifndef LS_LAUNCH_STDIN_SOURCE_H
#define LS_LAUNCH_STDIN_SOURCE_H

#include "net/poller.h"

#include <stdbool.h>

#define STDIN_PIECE_MOST 8192 /* bytes that come in one call */
#define STDIN_LINE_MOST  4096 /* of a terminal; there has to be room for a whole one */

typedef struct stdin_source stdin_source;

typedef struct stdin_source_options {
    int fd;       /* stays the caller's */
    bool goes_on; /* of a terminal: what follows its end (Ctrl-D) is read, too */
    void *self;
    /* What was read; no bytes: the end. Never from within a call of this module. */
    void (*bytes)(void *self, const char *bytes, size_t n);
} stdin_source_options;

/* Nothing is read yet. */
LS_MUST_USE ls_status stdin_source_open(poller *p, const stdin_source_options *opt,
                                        stdin_source **out);
void stdin_source_close(stdin_source *s); /* NULL is allowed */

/* So many bytes more may come. If all have come the end is told again. */
void stdin_source_want(stdin_source *s, size_t more);
/* None may come, whatever was wanted. NULL is allowed. */
void stdin_source_hold(stdin_source *s);

#endif
