/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hostlist_fold.c - writes many host names in few characters, as Slurm does: names that differ in
 * one number share brackets. Called by reports that name several hosts.
 */
#include "launch/hosts/hostlist_internal.h"

#include "base/alloc.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

enum { DIGITS_MOST = 9 };

/* A name in three parts: "node", "017", ".cluster". Hosts of a cluster differ in the number. */
typedef struct folded_name {
    const char *name;
    size_t n_before;
    size_t n_digits; /* 0: it has no number, and n_before is all of it */
    uint32_t value;
} folded_name;

/* Splits at the last digits of an address, or at the last digits before a name's first dot. */
static folded_name split_name(const char *name)
{
    const char *at = strchr(name, '@');
    const char *host = at != NULL ? at + 1 : name;
    const bool is_address = strspn(host, "0123456789.") == strlen(host);
    const char *end = host + (is_address ? strlen(host) : strcspn(host, "."));
    folded_name f = {.name = name, .n_before = strlen(name)};

    if (strchr(host, ':') != NULL)
        return f;
    while (end > host && !hostlist_is_digit(end[-1]))
        end--;
    while (end > host && f.n_digits < DIGITS_MOST && hostlist_is_digit(end[-1])) {
        end--;
        f.n_digits++;
    }
    if (f.n_digits == 0)
        return f;
    f.n_before = (size_t)(end - name);
    for (size_t i = 0; i < f.n_digits; i++)
        f.value = f.value * 10 + (uint32_t)(end[i] - '0');
    return f;
}

static const char *behind(const folded_name *f)
{
    return f->name + f->n_before + f->n_digits;
}

/* Compares everything except the number. */
static int compare_kinds(const folded_name *a, const folded_name *b)
{
    const size_t n = a->n_before < b->n_before ? a->n_before : b->n_before;
    int order = memcmp(a->name, b->name, n);

    if (order == 0)
        order = (a->n_before > b->n_before) - (a->n_before < b->n_before);
    if (order == 0)
        order = (a->n_digits != 0) - (b->n_digits != 0);
    return order != 0 ? order : strcmp(behind(a), behind(b));
}

static int compare_names(const void *left, const void *right)
{
    const folded_name *a = left;
    const folded_name *b = right;
    const int order = compare_kinds(a, b);

    if (order != 0)
        return order;
    if (a->value != b->value)
        return a->value > b->value ? 1 : -1;
    return (a->n_digits > b->n_digits) - (a->n_digits < b->n_digits);
}

/* Whether b's number is the successor of a's, with the width of `first`. */
static bool follows(const folded_name *first, const folded_name *a, const folded_name *b)
{
    char text[16];

    if (b->value != a->value + 1)
        return false;
    text_format(text, sizeof(text), "%0*u", (int)first->n_digits, b->value);
    return strlen(text) == b->n_digits;
}

static void append_number(const folded_name *f, text_buf *out)
{
    text_append_bytes(out, f->name + f->n_before, f->n_digits);
}

/* "node[1,3-5].cluster", of names that differ only in the number. */
static void append_group(const folded_name *names, size_t n, text_buf *out)
{
    text_append_bytes(out, names->name, names->n_before);
    if (names->n_digits == 0)
        return;
    if (n > 1)
        text_append(out, "[");
    for (size_t i = 0; i < n; i++) {
        const size_t first = i;

        while (i + 1 < n && follows(&names[first], &names[i], &names[i + 1]))
            i++;
        text_append(out, "%s", first > 0 ? "," : "");
        append_number(&names[first], out);
        if (i > first) {
            text_append(out, "-");
            append_number(&names[i], out);
        }
    }
    text_append(out, "%s%s", n > 1 ? "]" : "", behind(names));
}

static size_t drop_duplicates(folded_name *names, size_t n)
{
    size_t n_unique = 0;

    for (size_t i = 0; i < n; i++)
        if (n_unique == 0 || compare_names(&names[n_unique - 1], &names[i]) != 0)
            names[n_unique++] = names[i];
    return n_unique;
}

void hostlist_fold(const char *const *names, size_t n, text_buf *out)
{
    folded_name *list = ls_calloc(n + 1, sizeof(*list));

    for (size_t i = 0; i < n && list == NULL; i++) /* no memory: then without brackets */
        text_append(out, "%s%s", i > 0 ? "," : "", names[i]);
    if (list == NULL)
        return;
    for (size_t i = 0; i < n; i++)
        list[i] = split_name(names[i]);
    qsort(list, n, sizeof(*list), compare_names);
    n = drop_duplicates(list, n);
    for (size_t i = 0; i < n;) {
        const size_t first = i;

        while (i < n && compare_kinds(&list[first], &list[i]) == 0)
            i++;
        text_append(out, "%s", first > 0 ? "," : "");
        append_group(&list[first], i - first, out);
    }
    ls_free(list);
}
