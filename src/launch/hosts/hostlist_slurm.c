/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hostlist_slurm.c - parses Slurm's compressed node lists and run-length coded counts. A list is
 * checked whole before it is expanded, and expands to at most HOSTLIST_HOSTS_MAX names. Called by
 * the tool's flags and inside Slurm allocations.
 *
 *     list  = name { "," name }
 *     name  = text { "[" range { "," range } "]" text }
 *     range = number [ "-" number ]
 *
 * The last text of a name with brackets is empty.
 * The order is scontrol's, by which nodes are numbered: the last bracket counts fastest, then the
 * first, the second and so on.
 */
#include "launch/hosts/hostlist_internal.h"

#include "base/alloc.h"

#include <stdio.h>
#include <string.h>

enum {
    BRACKETS_MAX = 8, /* in one name */
    WIDTH_MAX = 18    /* digits of a number */
};

typedef struct range {
    int64_t low;
    int64_t high;
    int width; /* digits of the low bound as it is written */
} range;

/* One bracket, with the text before it. */
typedef struct bracket {
    const char *text;
    size_t n_text;
    const char *first; /* after "[" */
    const char *next;  /* after the range in use */
    range now;
    int64_t value;
} bracket;

typedef struct slurm_name {
    bracket brackets[BRACKETS_MAX];
    int n;
    const char *tail; /* where there is no bracket: the whole name */
    size_t n_tail;
} slurm_name;

/* --- parsing --- */

/* An error at p, which lies in text. */
static ls_status fail_at(const char *text, const char *p, const char *what)
{
    return ls_fail(LS_EINVAL, "node list, position %zu: %s", (size_t)(p - text) + 1, what);
}

static bool read_bound(const char **s, int64_t *value, int *width)
{
    const char *start = *s;

    *value = 0;
    for (; hostlist_is_digit(**s) && *s - start < WIDTH_MAX; (*s)++)
        *value = *value * 10 + (**s - '0');
    *width = (int)(*s - start);
    return *width >= 1 && !hostlist_is_digit(**s);
}

/* Reads "01-03" or "7" and the "," or "]" after it. */
static ls_status read_range(const char *text, const char **s, range *out)
{
    const char *start = *s;
    int width;

    if (!read_bound(s, &out->low, &out->width))
        return fail_at(text, start, "brackets hold numbers and ranges, as [01-03,7]");
    out->high = out->low;
    if (**s == '-') {
        (*s)++;
        if (!read_bound(s, &out->high, &width))
            return fail_at(text, *s, "a range needs a number after the \"-\"");
    }
    if (out->high < out->low)
        return fail_at(text, start, "the range ends before its start");
    if (out->high - out->low >= HOSTLIST_HOSTS_MAX)
        return fail_at(text, start, "this range has more than 65536 hosts");
    if (**s != ',' && **s != ']')
        return fail_at(text, *s,
                       "this bracket is not closed, or holds more than numbers and ranges");
    (*s)++;
    return LS_OK;
}

/* Checks a whole bracket and multiplies *count by its numbers. */
static ls_status read_bracket(const char *text, const char **s, bracket *b, int64_t *count)
{
    int64_t n = 0;
    range r;

    b->first = *s;
    do {
        LS_TRY(read_range(text, s, &r));
        n += r.high - r.low + 1;
        if (n * *count > HOSTLIST_HOSTS_MAX)
            return fail_at(text, b->first, "more than 65536 hosts");
    } while ((*s)[-1] == ',');
    *count *= n;
    return LS_OK;
}

/* One name up to "," or the end; count: the names that it stands for. */
static ls_status read_name(const char *text, const char **s, slurm_name *out, int64_t *count)
{
    out->n = 0;
    *count = 1;
    for (;;) {
        const size_t n = strcspn(*s, "[],");
        bracket *b = &out->brackets[out->n];

        if ((*s)[n] == ']')
            return fail_at(text, *s + n, "a \"]\" without a \"[\"");
        if ((*s)[n] != '[') {
            out->tail = *s;
            out->n_tail = n;
            *s += n;
            if (out->n > 0 && n > 0)
                return fail_at(text, out->tail,
                               "text after the last bracket, where Slurm writes none");
            return LS_OK;
        }
        if (out->n == BRACKETS_MAX)
            return fail_at(text, *s + n, "more than 8 brackets in a name");
        b->text = *s;
        b->n_text = n;
        *s += n + 1;
        LS_TRY(read_bracket(text, s, b, count));
        out->n++;
    }
}

/* --- expanding --- */

/* read_bracket() has checked the text. */
static void take_range(bracket *b, const char *at)
{
    b->next = at;
    (void)read_bound(&b->next, &b->now.low, &b->now.width);
    b->now.high = b->now.low;
    if (*b->next == '-') {
        int width;

        b->next++;
        (void)read_bound(&b->next, &b->now.high, &width);
    }
    b->next++;
    b->value = b->now.low;
}

/* To the next value; false when it has wrapped to the first. */
static bool next_value(bracket *b)
{
    if (b->value < b->now.high) {
        b->value++;
        return true;
    }
    if (b->next[-1] == ',') {
        take_range(b, b->next);
        return true;
    }
    take_range(b, b->first);
    return false;
}

static ls_status append_name(const char *text, const char *at, const slurm_name *name,
                             hostlist *out)
{
    char buf[HOSTLIST_NAME_MAX + 1];
    size_t used = 0;

    for (int i = 0; i < name->n; i++) {
        const bracket *b = &name->brackets[i];

        if (b->n_text + WIDTH_MAX + 2 > sizeof(buf) - used)
            return fail_at(text, at, "a name of more than 253 characters");
        memcpy(buf + used, b->text, b->n_text);
        used += b->n_text;
        used += (size_t)snprintf(buf + used, sizeof(buf) - used, "%0*lld", b->now.width,
                                 (long long)b->value);
    }
    if (name->n_tail > sizeof(buf) - 1 - used)
        return fail_at(text, at, "a name of more than 253 characters");
    memcpy(buf + used, name->tail, name->n_tail);
    used += name->n_tail;
    if (!hostlist_is_name(buf, used))
        return fail_at(text, at,
                       "not a host name: letters, digits, \".\", \"_\", \"-\", not starting with "
                       "\".\" or \"-\"");
    return hostlist_append(out, buf, used, 0);
}

static ls_status expand(const char *text, const char *at, slurm_name *name, hostlist *out)
{
    int i;

    for (int k = 0; k < name->n; k++)
        take_range(&name->brackets[k], name->brackets[k].first);
    do {
        LS_TRY(append_name(text, at, name, out));
        for (i = 0; i < name->n && !next_value(&name->brackets[(i + name->n - 1) % name->n]);)
            i++;
    } while (i < name->n);
    return LS_OK;
}

static ls_status parse_nodes(const char *text, hostlist *out)
{
    const char *s = text;

    for (;;) {
        const char *at = s;
        slurm_name name = {.tail = at};
        int64_t count = 0;

        LS_TRY(read_name(text, &s, &name, &count));
        if (count > HOSTLIST_HOSTS_MAX - out->n)
            return fail_at(text, at, "more than 65536 hosts");
        LS_TRY(expand(text, at, &name, out));
        if (*s == 0)
            return LS_OK;
        s++;
    }
}

static ls_status assign_counts(const char *text, hostlist *out)
{
    int *counts = NULL;
    int n = 0;

    LS_TRY(hostlist_parse_counts(text, "tasks per node", &counts, &n));
    for (int i = 0; i < n && n == out->n; i++)
        out->hosts[i].slots = counts[i];
    ls_free(counts);
    if (n != out->n)
        return ls_fail(LS_EINVAL, "tasks per node: %d numbers for %d nodes", n, out->n);
    return LS_OK;
}

ls_status hostlist_parse_slurm(const char *nodes, const char *counts, hostlist *out)
{
    ls_status st;

    *out = (hostlist){0};
    st = parse_nodes(nodes, out);
    if (st == LS_OK && counts != NULL)
        st = assign_counts(counts, out);
    if (st != LS_OK)
        hostlist_free(out);
    return st;
}

/* --- counts --- */

/* "(x3)" after a number: its repetitions; 1 without it, -1 for any other text. */
static int read_repeat(const char **s, const char *end)
{
    int times;

    if (**s != '(')
        return 1;
    if ((*s)[1] != 'x')
        return -1;
    *s += 2;
    times = hostlist_number(s, end, HOSTLIST_HOSTS_MAX);
    if (times < 1 || **s != ')')
        return -1;
    (*s)++;
    return times;
}

ls_status hostlist_parse_counts(const char *text, const char *what, int **out, int *n)
{
    const char *const end = text + strlen(text);
    const char *s = text;
    int *list = NULL;
    int used = 0;

    for (;;) {
        const char *at = s;
        const int count = hostlist_number(&s, end, HOSTLIST_SLOTS_MAX);
        const int times = count < 1 ? -1 : read_repeat(&s, end);
        int *grown;

        if (times < 1 || (*s != ',' && *s != 0) || times > HOSTLIST_HOSTS_MAX - used) {
            ls_free(list);
            return ls_fail(LS_EINVAL,
                           "%s, position %zu: a list of numbers from 1 to %d, as 8,2 or 2(x2),1, "
                           "for at most %d nodes",
                           what, (size_t)(at - text) + 1, HOSTLIST_SLOTS_MAX, HOSTLIST_HOSTS_MAX);
        }
        grown = ls_realloc(list, (size_t)used + (size_t)times, sizeof(*grown));
        if (grown == NULL) {
            ls_free(list);
            return ls_fail(LS_ENOMEM, "no memory for %d numbers", used + times);
        }
        list = grown;
        for (int i = 0; i < times; i++)
            list[used++] = count;
        if (*s == 0)
            break;
        s++;
    }
    *out = list;
    *n = used;
    return LS_OK;
}
