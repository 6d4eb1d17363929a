/* SPDX-License-Identifier: Apache-2.0 */
/* environment.h - where the variables come from that a rank is identified by; tests replace it. */
#ifndef LS_COMM_JOIN_ENVIRONMENT_H
#define LS_COMM_JOIN_ENVIRONMENT_H

/* get() returns NULL for an unset variable. */
typedef struct comm_env {
    const char *(*get)(void *self, const char *name);
    void *self;
} comm_env;

#endif
