/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flags.h - the flags of a command line, by table.
 *
 * "-" and "_" in names are the same; "--name VALUE", "--name=VALUE" and "-x VALUE" are understood,
 * one dash before a long name, too ("-np 2"), and a value that begins with a digit directly behind
 * its letter ("-b8").
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
    LS_FLAG_BOOL,          /* int; no value, or =true, =false */
    LS_FLAG_ATTACHED_TEXT, /* const char *; "--pass=VALUE", while "--pass" alone gives "" */
    LS_FLAG_TEXTS,         /* ls_flag_texts; each time it is given adds one */
    /* const char *; an argument that is no flag: the first such row gets the first of them */
    LS_FLAG_ARGUMENT,
    LS_FLAG_HEADING /* no flag: `name` is a heading of the help, over the flags that follow */
} ls_flag_kind;

/* The values of a flag that may come several times, in their order. */
typedef struct ls_flag_texts {
    const char **items; /* the caller's, `most` of them */
    int most;           /* one more is an error */
    int n;
} ls_flag_texts;

/* One flag. What `value` points to before parsing is the default. */
typedef struct ls_flag {
    const char *name; /* "batch-size" */
    char letter;      /* 'b', or 0 */
    ls_flag_kind kind;
    void *value;
    double min; /* numbers: bounds, when max > min */
    double max;
    /* NULL: accepted, but not listed. "`SECONDS` from ..." names the value: --grace SECONDS. */
    const char *help;
} ls_flag;

/* What a program takes. Flags of a later table are hidden by those of an earlier one with the same name. */
typedef struct ls_flags {
    size_t size;         /* sizeof(ls_flags) */
    const char *program; /* "mnist" */
    const char *usage;   /* "[flags] PROG ARGS...", after the program's name */
    const char *summary;
    const ls_flag *tables[2];
    int n[2];
    int takes_rest; /* 1: the first argument that is no flag (and has no row) ends them; 0: there may be none */
    int width; /* columns of the help; 0: those of the terminal behind stdout, or 80 */
} ls_flags;

/*
 * Sets all values. *rest (may be NULL) is the index of the first argument that is no flag, argc when there is none ("--" ends the
 * flags, too). An unknown flag is LS_EINVAL and names the nearest known one.
 */
LS_API LS_MUST_USE ls_status ls_flags_parse(const ls_flags *flags, int argc, char **argv,
                                            int *rest);

/*
 * The help text: usage, summary, and the flags under their headings, in lines of at most 100
 * columns that fit `width`. The defaults are the values as they are now: call it before parsing.
 * Free it with ls_flags_free(). LS_ENOMEM: no memory. Does not block; any thread.
 */
LS_API LS_MUST_USE ls_status ls_flags_help(const ls_flags *flags, char **out);
LS_API void ls_flags_free(char *text);

LS_END_DECLS

#endif
