/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank_list.c - parses lists of ranks and streams. A list has at most RANK_LIST_MOST parts. Called
 * by the tool's flags; queried by the agents for each rank.
 */
#include "launch/spec/rank_list.h"

#include "base/text.h"

#include <string.h>

/* Digits up to a number that is too large; the end in *at. */
static bool read_rank(const char **at, int *out)
{
    const char *s = *at;
    int value = 0;

    while (*s >= '0' && *s <= '9' && value <= RANK_LIST_RANK_MOST)
        value = value * 10 + (*s++ - '0');
    if (s == *at || value > RANK_LIST_RANK_MOST)
        return false;
    *at = s;
    *out = value;
    return true;
}

/* "N" or "N-M". */
static bool read_range(const char **at, rank_part *part)
{
    if (!read_rank(at, &part->first))
        return false;
    part->last = part->first;
    if (**at != '-')
        return true;
    ++*at;
    return read_rank(at, &part->last) && part->last >= part->first;
}

static bool read_streams(const char **at, unsigned *streams)
{
    if (**at < '0' || **at > '3')
        return false;
    *streams = (unsigned)(*(*at)++ - '0');
    return true;
}

static bool read_part(const char **at, bool has_streams, rank_part *part)
{
    part->streams = RANK_STREAMS_BOTH;
    if (!read_range(at, part))
        return false;
    if (!has_streams)
        return true;
    if (**at != ':')
        return false;
    ++*at;
    return read_streams(at, &part->streams);
}

static const char *skip_blanks(const char *s)
{
    return s + strspn(s, " \t");
}

/* Reads all parts; false: *at is the first malformed one. */
static bool read_parts(const char **at, bool has_streams, rank_list *out)
{
    for (out->n = 0; out->n < RANK_LIST_MOST; ++*at) {
        const char *begin = *at = skip_blanks(*at);
        const bool is_part = read_part(at, has_streams, &out->parts[out->n]);

        *at = skip_blanks(*at);
        if (!is_part || (**at != ',' && **at != 0)) {
            *at = begin;
            return false;
        }
        out->n++;
        if (**at == 0)
            return true;
    }
    return false;
}

static ls_status fail_part(const char *what, const char *at, const char *form)
{
    char shown[48];

    text_printable(shown, sizeof(shown), at);
    shown[strcspn(shown, ",")] = 0;
    return ls_fail(LS_EINVAL, "%s: \"%s\" is not %s", what, shown, form);
}

static ls_status parse(const char *text, const char *what, bool has_streams, const char *form,
                       rank_list *out)
{
    const char *at = text;

    *out = (rank_list){0};
    if (read_parts(&at, has_streams, out))
        return LS_OK;
    if (out->n == RANK_LIST_MOST)
        return ls_fail(LS_EINVAL, "%s: more than %d parts; 0-7 names many ranks at once", what,
                       RANK_LIST_MOST);
    return fail_part(what, at, form);
}

ls_status rank_list_parse_streams(const char *text, const char *what, rank_list *out)
{
    if (text[0] >= '0' && text[0] <= '3' && text[1] == 0) {
        *out = (rank_list){.otherwise = (unsigned)(text[0] - '0')};
        return LS_OK;
    }
    return parse(text, what, true, "0, 1 (stdout), 2 (stderr), 3 (both) or a list like 0:3,1:1",
                 out);
}

ls_status rank_list_parse_ranks(const char *text, const char *what, rank_list *out)
{
    return parse(text, what, false, "a list of ranks like 0,3 or 0-3", out);
}

unsigned rank_list_streams(const rank_list *list, int rank)
{
    for (int i = list->n - 1; i >= 0; i--)
        if (rank >= list->parts[i].first && rank <= list->parts[i].last)
            return list->parts[i].streams;
    return list->otherwise;
}

bool rank_list_is_empty(const rank_list *list)
{
    for (int i = 0; i < list->n; i++)
        if (list->parts[i].streams != RANK_STREAMS_NONE)
            return false;
    return list->otherwise == RANK_STREAMS_NONE;
}
