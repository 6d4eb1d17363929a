/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flags.c - parses a command line by a table of flags. Values are stored as they are found; the
 * first error stops. All programs of Lockstep, and the examples, parse with it.
 */
#include <lockstep/flags.h>

#include "base/alloc.h"
#include "base/flags/flag_table.h"
#include "base/options.h"
#include "base/text.h"

#include <string.h>

#define NAME_MOST 40

/* --- finding a flag --- */

/* Whether the row has this letter, or this name of `n` bytes. */
static bool is_flag(const ls_flag *flag, const char *name, size_t n, bool by_letter)
{
    if (flag->kind == LS_FLAG_ARGUMENT || flag->kind == LS_FLAG_HEADING)
        return false;
    return by_letter ? flag->letter == name[0] : is_flag_name(flag->name, name, n);
}

/* "-b8": a letter and its value, which begins with a digit, as getopt reads it. */
static bool has_value_attached(const ls_flag *flag, const char *name)
{
    return flag->kind != LS_FLAG_BOOL && flag->letter == name[0] && name[1] >= '0' &&
           name[1] <= '9';
}

static const ls_flag *find_row(const ls_flags *f, const char *name, size_t n, bool by_letter)
{
    for (int i = 0; i < n_flags(f); i++)
        if (is_flag(flag_at(f, i), name, n, by_letter))
            return flag_at(f, i);
    return NULL;
}

/* The number of names that `n` bytes may abbreviate; the first two are stored. */
static int find_full_names(const ls_flags *f, const char *name, size_t n, const char *found[2])
{
    int n_found = 0;

    for (int i = 0; n > 0 && f->abbreviated != NULL && f->abbreviated[i] != NULL; i++)
        if (flag_name_begins(f->abbreviated[i], name, n) && n_found++ < 2)
            found[n_found - 1] = f->abbreviated[i];
    return n_found;
}

/* Finds "--name", "--name=value", "-name", "-x" or "-x8"; *value points to the value or is NULL. */
static const ls_flag *find_flag(const ls_flags *f, const char *arg, const char **value)
{
    const bool is_long = text_starts(arg, "--");
    const char *name = arg + (is_long ? 2 : 1);
    const size_t n = strcspn(name, "=");
    const ls_flag *row = find_row(f, name, n, !is_long && n == 1);
    const char *full[2];

    *value = name[n] == '=' ? name + n + 1 : NULL;
    if (row == NULL && is_long && find_full_names(f, name, n, full) == 1)
        row = find_row(f, full[0], strlen(full[0]), false);
    if (row != NULL)
        return row;
    *value = name + 1;
    for (int i = 0; i < n_flags(f) && !is_long; i++)
        if (is_flag(flag_at(f, i), name, 1, true) && has_value_attached(flag_at(f, i), name))
            return flag_at(f, i);
    return NULL;
}

/* The row of the argument that follows `n` others. */
static const ls_flag *find_argument(const ls_flags *f, int n)
{
    for (int i = 0; i < n_flags(f); i++)
        if (flag_at(f, i)->kind == LS_FLAG_ARGUMENT && n-- == 0)
            return flag_at(f, i);
    return NULL;
}

static ls_status unknown_flag(const ls_flags *f, const char *arg)
{
    const char *nearest = NULL;
    const char *full[2];
    char name[NAME_MOST + 1];
    int least = 4; /* a larger distance is no typing error */
    int n;

    text_format(name, sizeof(name), "%.*s", (int)strcspn(arg, "="), arg);
    n = (int)strlen(name + strspn(name, "-"));
    if (text_starts(name, "--") && find_full_names(f, name + 2, strlen(name + 2), full) > 1)
        return ls_fail(LS_EINVAL,
                       "ambiguous flag %s: it may be --%s or --%s (%s --help=all lists all)", name,
                       full[0], full[1], f->program);
    least = n < least ? n : least; // nor is a name without a common letter
    for (int i = 0; i < n_flags(f); i++) {
        const ls_flag *flag = flag_at(f, i);
        const int distance = text_edit_distance(name + strspn(name, "-"), flag->name);
        if (flag->help != NULL && flag->kind != LS_FLAG_HEADING && distance < least) {
            least = distance;
            nearest = flag->name;
        }
    }
    if (nearest != NULL)
        return ls_fail(LS_EINVAL, "unknown flag %s: did you mean --%s? (%s --help=all lists all)",
                       name, nearest, f->program);
    return ls_fail(LS_EINVAL, "unknown flag %s (%s --help=all lists all)", name, f->program);
}

/* --- values --- */

static ls_status set_int(const ls_flag *flag, const char *what, const char *text)
{
    const bool bounded = flag->max > flag->min;

    return text_parse_int(text, what, bounded ? (int64_t)flag->min : INT64_MIN,
                          bounded ? (int64_t)flag->max : INT64_MAX, flag->value);
}

static ls_status set_bytes(const ls_flag *flag, const char *what, const char *text)
{
    uint64_t bytes;

    LS_TRY(text_parse_bytes(text, what, INT64_MAX, &bytes));
    *(int64_t *)flag->value = (int64_t)bytes;
    return LS_OK;
}

static ls_status set_bool(const ls_flag *flag, const char *what, const char *text)
{
    bool on = true;

    if (text != NULL && text_equal(text, "all") && text_equal(flag->name, "help")) {
        *(int *)flag->value = 2;
        return LS_OK;
    }
    if (text != NULL)
        LS_TRY(text_parse_bool(text, what, &on));
    *(int *)flag->value = on;
    return LS_OK;
}

static ls_status add_text(const ls_flag *flag, const char *text)
{
    ls_flag_texts *list = flag->value;

    if (list->n == list->most)
        return ls_fail(LS_EINVAL, "--%s is given more than %d times", flag->name, list->most);
    list->items[list->n++] = text;
    return LS_OK;
}

static ls_status set_value(const ls_flag *flag, const char *text)
{
    char what[NAME_MOST + 8];

    text_format(what, sizeof(what), "--%s", flag->name);
    switch (flag->kind) {
    case LS_FLAG_BOOL:
        return set_bool(flag, what, text);
    case LS_FLAG_INT:
        return set_int(flag, what, text);
    case LS_FLAG_BYTES:
        return set_bytes(flag, what, text);
    case LS_FLAG_REAL:
        return text_parse_double(text, what, flag->min, flag->max > flag->min ? flag->max : 1e300,
                                 flag->value);
    case LS_FLAG_TEXT:
    case LS_FLAG_OPTIONAL_TEXT:
    case LS_FLAG_ATTACHED_TEXT:
    case LS_FLAG_ARGUMENT:
        *(const char **)flag->value = text;
        return LS_OK;
    case LS_FLAG_TEXTS:
        return add_text(flag, text);
    case LS_FLAG_HEADING:
        break;
    }
    return ls_fail(LS_EINTERNAL, "flag --%s has no kind", flag->name);
}

/* Handles argv[*i] and, when the flag has a separate value, the next argument. */
static ls_status take_flag(const ls_flags *f, int argc, char **argv, int *i)
{
    const char *value;
    const ls_flag *flag = find_flag(f, argv[*i], &value);

    if (flag == NULL)
        return unknown_flag(f, argv[*i]);
    if (value == NULL && flag->kind != LS_FLAG_BOOL) {
        const bool has_next = *i + 1 < argc;
        if (flag->kind == LS_FLAG_ATTACHED_TEXT)
            value = "";
        else if (flag->kind == LS_FLAG_OPTIONAL_TEXT)
            value = has_next && argv[*i + 1][0] != '-' ? argv[++*i] : "";
        else if (has_next)
            value = argv[++*i];
        else
            return ls_fail(LS_EINVAL, "--%s needs a value", flag->name);
    }
    return set_value(flag, value);
}

/* Takes flags and arguments up to the first that is none: argv[*at]. */
static ls_status take_all(const ls_flags *flags, int argc, char **argv, int *at)
{
    bool only_arguments = false; /* "--" has been passed */
    int n_arguments = 0;

    for (*at = 1; *at < argc; ++*at) {
        const ls_flag *argument;

        if (!only_arguments && text_equal(argv[*at], "--")) {
            only_arguments = true;
            continue;
        }
        if (!only_arguments && argv[*at][0] == '-' && argv[*at][1] != 0) {
            LS_TRY(take_flag(flags, argc, argv, at));
            continue;
        }
        argument = find_argument(flags, n_arguments);
        if (argument == NULL)
            break;
        LS_TRY(set_value(argument, argv[*at]));
        n_arguments++;
    }
    return LS_OK;
}

ls_status ls_flags_parse(const ls_flags *flags, int argc, char **argv, int *rest)
{
    ls_flags copy;
    int i;

    LS_TRY(LS_GIVEN(flags));
    LS_TRY(LS_GIVEN(argv));
    LS_TRY(OPTIONS_COPY(ls_flags, flags, &copy));
    flags = &copy;
    LS_TRY(take_all(flags, argc, argv, &i));
    if (i < argc && !flags->takes_rest)
        return ls_fail(LS_EINVAL, "unexpected argument %s (%s --help lists the flags)", argv[i],
                       flags->program);
    if (rest != NULL)
        *rest = i;
    return LS_OK;
}

void ls_flags_free(char *text)
{
    ls_free(text);
}
