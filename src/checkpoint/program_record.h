/* SPDX-License-Identifier: Apache-2.0 */
/*
 * program_record.h - how a process was started, as a JSON text in the metadata of a file: its
 * command, its folder, and the variables that decide which kernels compute. train/run/capsule.c
 * writes it, lockstep replay starts the program again by it.
 */
#ifndef LS_CHECKPOINT_PROGRAM_RECORD_H
#define LS_CHECKPOINT_PROGRAM_RECORD_H

#include "base/status.h"
#include "base/text.h"

/* The key of the metadata. */
#define PROGRAM_RECORD_KEY "program"

enum { PROGRAM_RECORD_ARGUMENTS = 4096, PROGRAM_RECORD_VARIABLES = 8 };

typedef struct program_record {
    char **argv; /* NULL ends it */
    int argc;
    char *executable;
    char *folder;
    /* "NAME=VALUE", or "NAME" of a variable that was not set */
    char *variables[PROGRAM_RECORD_VARIABLES];
    int n_variables;
} program_record;

/* Appends the record of this process. LS_EIO: /proc does not give it. */
LS_MUST_USE ls_status program_record_append(text_buf *out);

/* Reads a text that may come from anywhere. LS_EFORMAT: it is not such a record, or too large. */
LS_MUST_USE ls_status program_record_read(const char *text, program_record *out);
void program_record_free(program_record *r);

#endif
