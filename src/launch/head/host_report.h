/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_report.h - the errors of several hosts in few lines: the same error of many hosts is one
 * line. Pure.
 *
 *     host node2: me@node2: Permission denied (publickey); fix: ssh-copy-id node2 ...
 *     host node3: me@node3: Permission denied (publickey); fix: ssh-copy-id node3 ...
 *     host node4: ...
 *  -> hosts node[2-4]: me@HOST: Permission denied (publickey); fix: ssh-copy-id HOST ...
 *
 * Two texts are the same if they differ only where each has its host's own name, or an address.
 */
#ifndef LS_LAUNCH_HEAD_HOST_REPORT_H
#define LS_LAUNCH_HEAD_HOST_REPORT_H

#include "base/status.h"
#include "base/text.h"

typedef struct host_error {
    char *host;
    char *why;
    char *kind; /* the same with HOST and ADDRESS in it */
} host_error;

/* Zero-initialise; host_report_free() leaves it empty and usable. */
typedef struct host_report {
    host_error *items;
    int n;
    int capacity;
} host_report;

/* Both texts are copied, their control characters replaced. */
LS_MUST_USE ls_status host_report_add(host_report *r, const char *host, const char *why);

/* Calls line(self, text) for each line, in the order in which the first of each kind came. */
void host_report_write(const host_report *r, void (*line)(void *self, const char *text),
                       void *self);

void host_report_free(host_report *r);

#endif
