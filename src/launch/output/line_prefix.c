/* SPDX-License-Identifier: Apache-2.0 */
/*
 * line_prefix.c - fills in torchrun's line prefix template. The result never contains control
 * characters. Called by the agent when it opens the streams of a rank.
 */
#include "launch/output/line_prefix.h"

#include "base/text.h"

#include <ctype.h>
#include <string.h>

static void put(char *buf, size_t n, const char *text, size_t length)
{
    const size_t used = strlen(buf);

    text_format(buf + used, n - used, "%.*s", (int)length, text);
}

/* The value of a name, a number in `space`; NULL: there is no such name. */
static const char *value_of(const char *name, size_t n, const line_prefix_values *v, char *space,
                            size_t n_space)
{
    static const char *const names[] = {"role_name", "hostname", "rank", "local_rank"};
    size_t i = 0;

    while (i < LS_COUNT_OF(names) && (strlen(names[i]) != n || strncmp(names[i], name, n) != 0))
        i++;
    switch (i) {
    case 0:
        return v->role_name;
    case 1:
        return v->hostname;
    case 2:
    case 3:
        return text_format(space, n_space, "%d", i == 2 ? v->rank : v->local_rank);
    default:
        return NULL;
    }
}

static size_t name_length(const char *at)
{
    size_t n = 0;

    while (isalnum((unsigned char)at[n]) || at[n] == '_')
        n++;
    return n;
}

/* Puts the value of a reference that begins with '$'. Returns its length in the template. */
static size_t put_reference(const char *at, const line_prefix_values *v, char *buf, size_t n)
{
    const bool has_brace = at[1] == '{';
    const char *name = at + 1 + has_brace;
    const size_t length = name_length(name);
    const size_t whole = 1 + length + (has_brace ? 2 : 0);
    char space[16];
    const char *value = NULL;

    if (at[1] == '$') {
        put(buf, n, "$", 1);
        return 2;
    }
    if (!has_brace || name[length] == '}')
        value = value_of(name, length, v, space, sizeof(space));
    if (value == NULL) {
        put(buf, n, "$", 1);
        return 1;
    }
    put(buf, n, value, strlen(value));
    return whole;
}

const char *line_prefix_make(const char *template, const line_prefix_values *values, char *buf,
                             size_t n)
{
    buf[0] = 0;
    while (*template != 0) {
        const size_t plain = strcspn(template, "$");

        put(buf, n, template, plain);
        template += plain;
        if (*template == '$')
            template += put_reference(template, values, buf, n);
    }
    text_printable(buf, n, buf);
    return buf;
}
