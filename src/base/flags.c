/* SPDX-License-Identifier: Apache-2.0 */
#include <lockstep/flags.h>

#include "base/alloc.h"
#include "base/flag_table.h"
#include "base/options.h"
#include "base/text.h"

#include <string.h>

#define NAME_MOST 40

/* --- looking a flag up --- */

/* The row of a flag with this letter, or with this name of `n` bytes. */
static bool is_flag(const ls_flag *flag, const char *name, size_t n, bool by_letter)
{
    if (flag->kind == LS_FLAG_ARGUMENT || flag->kind == LS_FLAG_HEADING)
        return false;
    return by_letter ? flag->letter == name[0] : is_flag_name(flag->name, name, n);
}

/* "-b8" as getopt reads it: a letter and its value, which begins with a digit. */
static bool has_value_attached(const ls_flag *flag, const char *name)
{
    return flag->kind != LS_FLAG_BOOL && flag->letter == name[0] && name[1] >= '0' &&
           name[1] <= '9';
}

/* Finds "--name", "--name=value", "-name", "-x" or "-x8"; *value points to the value or is NULL. */
static const ls_flag *find_flag(const ls_flags *f, const char *arg, const char **value)
{
    const bool is_long = text_starts(arg, "--");
    const char *name = arg + (is_long ? 2 : 1);
    const size_t n = strcspn(name, "=");

    *value = name[n] == '=' ? name + n + 1 : NULL;
    for (int i = 0; i < n_flags(f); i++)
        if (is_flag(flag_at(f, i), name, n, !is_long && n == 1))
            return flag_at(f, i);
    *value = name + 1;
    for (int i = 0; i < n_flags(f) && !is_long; i++)
        if (is_flag(flag_at(f, i), name, 1, true) && has_value_attached(flag_at(f, i), name))
            return flag_at(f, i);
    return NULL;
}

/* The row of the argument that `n` others stand before. */
static const ls_flag *find_argument(const ls_flags *f, int n)
{
    for (int i = 0; i < n_flags(f); i++)
        if (flag_at(f, i)->kind == LS_FLAG_ARGUMENT && n-- == 0)
            return flag_at(f, i);
    return NULL;
}

/* Levenshtein's distance, for "did you mean". */
static int edit_distance(const char *a, const char *b)
{
    const size_t n = strlen(a);
    const size_t m = strlen(b);
    int row[NAME_MOST + 1];

    if (n > NAME_MOST || m > NAME_MOST)
        return NAME_MOST;
    for (size_t j = 0; j <= m; j++)
        row[j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            const int keep = diagonal + (a[i - 1] != b[j - 1]);
            const int change = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            diagonal = row[j];
            row[j] = keep < change ? keep : change;
        }
    }
    return row[m];
}

static ls_status unknown_flag(const ls_flags *f, const char *arg)
{
    const char *nearest = NULL;
    char name[NAME_MOST + 1];
    int least = 4; /* further away is no help */
    int n;

    text_format(name, sizeof(name), "%.*s", (int)strcspn(arg, "="), arg);
    n = (int)strlen(name + strspn(name, "-"));
    least = n < least ? n : least; // nor is a name that shares no letter
    for (int i = 0; i < n_flags(f); i++) {
        const ls_flag *flag = flag_at(f, i);
        const int distance = edit_distance(name + strspn(name, "-"), flag->name);
        if (flag->help != NULL && flag->kind != LS_FLAG_HEADING && distance < least) {
            least = distance;
            nearest = flag->name;
        }
    }
    if (nearest != NULL)
        return ls_fail(LS_EINVAL, "unknown flag %s: did you mean --%s? (%s --help lists all)", name,
                       nearest, f->program);
    return ls_fail(LS_EINVAL, "unknown flag %s (%s --help lists all)", name, f->program);
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

/* Takes argv[*i] and, where the flag wants one, the value behind it. */
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

ls_status ls_flags_parse(const ls_flags *flags, int argc, char **argv, int *rest)
{
    ls_flags copy;
    bool only_arguments = false; /* "--" has been passed */
    int n_arguments = 0;
    int i;

    LS_TRY(LS_GIVEN(flags));
    LS_TRY(LS_GIVEN(argv));
    LS_TRY(OPTIONS_COPY(ls_flags, flags, &copy));
    flags = &copy;
    for (i = 1; i < argc; i++) {
        const ls_flag *argument;
        if (!only_arguments && text_equal(argv[i], "--")) {
            only_arguments = true;
            continue;
        }
        if (!only_arguments && argv[i][0] == '-' && argv[i][1] != 0) {
            LS_TRY(take_flag(flags, argc, argv, &i));
            continue;
        }
        argument = find_argument(flags, n_arguments);
        if (argument == NULL)
            break;
        LS_TRY(set_value(argument, argv[i]));
        n_arguments++;
    }
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
