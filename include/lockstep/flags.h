/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flags.h - parses a command line by a table of flags.
 *
 * "-" and "_" in names are equal. Accepted are "--name VALUE", "--name=VALUE", "-x VALUE", one dash
 * before a long name ("-np 2"), and a value that begins with a digit directly behind its letter
 * ("-b8").
 */
#ifndef LOCKSTEP_FLAGS_H
#define LOCKSTEP_FLAGS_H

#include <lockstep/base.h>

LS_BEGIN_DECLS

typedef enum ls_flag_kind {
    LS_FLAG_TEXT,          /* const char *; points into argv */
    LS_FLAG_OPTIONAL_TEXT, /* const char *; "--resume" alone gives "" */
    LS_FLAG_INT,           /* int64_t */
    LS_FLAG_BYTES,         /* int64_t: 8, 64K, 32M, 1G (binary) */
    LS_FLAG_REAL,          /* double */
    LS_FLAG_BOOL,          /* int; no value, or =true, =false; --help=all gives 2 */
    LS_FLAG_ATTACHED_TEXT, /* const char *; "--pass=VALUE", while "--pass" alone gives "" */
    LS_FLAG_TEXTS,         /* ls_flag_texts; each occurrence adds one */
    /* const char *; an argument that is not a flag: the first such row gets the first of them */
    LS_FLAG_ARGUMENT,
    LS_FLAG_HEADING /* not a flag: `name` is a heading of the help for the following flags */
} ls_flag_kind;

/* The values of a flag that may occur several times, in order. */
typedef struct ls_flag_texts {
    const char **items; /* the caller's array, for `most` values */
    int most;           /* one more is an error */
    int n;
} ls_flag_texts;

/* One flag. The content of `value` before parsing is the default. */
typedef struct ls_flag {
    const char *name; /* "batch-size" */
    char letter;      /* 'b', or 0 */
    ls_flag_kind kind;
    void *value;
    double min; /* numbers: bounds, when max > min */
    double max;
    /* NULL: accepted, but not listed. A leading word in backquotes names the value: "`SECONDS` from
     * ..." is listed as --grace SECONDS. */
    const char *help;
} ls_flag;

/* The flags of a program. A flag of the first table hides that name in the second one. */
typedef struct ls_flags {
    size_t size;         /* sizeof(ls_flags) */
    const char *program; /* "mnist" */
    const char *usage;   /* "[flags] PROG ARGS...", printed after the program's name */
    const char *summary;
    const ls_flag *tables[2];
    int n[2];
    /* 1: the first argument without a flag or row ends the flags; 0: it is an error. */
    int takes_rest;
    int width; /* columns of the help; 0 = those of the terminal behind stdout, or 80 */
    const char *const *abbreviated; /* names of which a unique beginning is enough; NULL ends it */
    const char *const *brief;       /* those of the second table that --help lists; NULL: all */
} ls_flags;

/* Sets all values. *rest (may be NULL) becomes the index of the first argument that is not a flag,
 * argc when there is none; "--" also ends the flags. LS_EINVAL for an unknown flag names the
 * nearest known one. */
LS_API LS_MUST_USE ls_status ls_flags_parse(const ls_flags *flags, int argc, char **argv,
                                            int *rest);

/* The help text: usage, summary, and the flags under their headings, in lines of at most 100
 * columns that fit `width`. Defaults are the current values: call it before parsing. Free it with
 * ls_flags_free(). LS_ENOMEM: no memory. Does not block; any thread. */
LS_API LS_MUST_USE ls_status ls_flags_help(const ls_flags *flags, char **out);
LS_API void ls_flags_free(char *text);

LS_END_DECLS

#endif
